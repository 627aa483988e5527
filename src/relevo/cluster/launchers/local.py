"""All seats on this machine, as children of this process: for tests, and to try a cluster without one."""

from __future__ import annotations

from collections.abc import Sequence

from relevo.cluster.launchers.keepers import HeadKeeper, NodeKeeper
from relevo.cluster.launchers.seats import HeadSeat, NodeSeat, Room, SeatState
from relevo.core.urls import server_url

_HOST = "127.0.0.1"


class LocalLauncher:
    """Implements cluster.launchers.seats.Launcher."""

    def __init__(self) -> None:
        self._head: HeadKeeper | None = None
        self._nodes: list[NodeKeeper] = []
        self._url = ""

    def launch(self, head: HeadSeat, nodes: Sequence[tuple[NodeSeat, Room]]) -> None:
        self._head = HeadKeeper(head, _HOST)
        self._url = server_url(_HOST, head.http_port)
        self._nodes = [NodeKeeper(seat, _HOST, self._head) for seat, _ in nodes]

    def url(self) -> str:
        return self._url

    def states(self) -> list[SeatState]:
        return [each.state() for each in (self._head, *self._nodes) if each is not None]

    def end(self) -> None:
        for node in self._nodes:
            node.end()
        if self._head is not None:
            self._head.end()
