"""The two kinds of supervisor that a launcher keeps: the head, which invites, and nodes, which come when invited.

A node is invited by its name, once per start of its keeper: a second one of a name takes the name, and what the first
one has is revoked. So a machine that a launcher has given up, and that lives, is fenced by the head, whatever the
launcher thinks. When the head is at another place, or another authority's, its nodes join anew.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from relevo.cluster.enroller import Enroller, found_cluster
from relevo.cluster.identity import fingerprint_of
from relevo.cluster.identity_folder import write_private
from relevo.cluster.launchers.keeper import Keeper
from relevo.cluster.launchers.seats import (
    HEAD,
    HeadPlace,
    HeadSeat,
    Invitation,
    NodeSeat,
    SeatState,
    head_command,
    node_command,
)
from relevo.core.host_port import HostPort

_ASK_EVERY_S = 2.0  # where the head is; arbitrary


class AsksHead(Protocol):
    """How a node's keeper reaches the head's. None: it does not answer at present."""

    def invite(self, name: str) -> Invitation | None: ...

    def place(self) -> HeadPlace | None: ...


class HeadKeeper:
    """On the machine of the head. May be called from any thread."""

    def __init__(self, seat: HeadSeat, host: str) -> None:
        folder = Path(seat.folder).expanduser()
        has_authority = (folder / "ca.key").exists()
        enroller = Enroller.load(folder) if has_authority else found_cluster(folder, HEAD)
        assert enroller is not None
        self._enroller = enroller
        self._place = HeadPlace(
            str(HostPort(host, seat.control_port)), fingerprint_of(enroller.authority.certificate_pem)
        )
        command = head_command(seat, host)
        self._keeper = Keeper(HEAD, host, lambda: command, drain_s=seat.drain_s)

    def place(self) -> HeadPlace:
        return self._place

    def invite(self, name: str) -> Invitation:
        """A token for this name, good once and for an hour."""
        return Invitation(self._place, self._enroller.new_token(name=name).text())

    def state(self) -> SeatState:
        return self._keeper.state()

    def end(self) -> None:
        self._keeper.end()


class NodeKeeper:
    """On the machine of a node."""

    def __init__(self, seat: NodeSeat, host: str, head: AsksHead) -> None:
        self._seat, self._host, self._head = seat, host, head
        self._folder = Path(tempfile.mkdtemp(prefix=f"relevo-node-{seat.name}-"))
        self._joined: HeadPlace | None = None  # the one that its identity is of
        self._asked_at_s = 0.0
        self._keeper = Keeper(seat.name, host, self._prepare, drain_s=seat.drain_s, is_stale=self._is_stale)

    def state(self) -> SeatState:
        return self._keeper.state()

    def end(self) -> None:
        self._keeper.end()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _prepare(self) -> Sequence[str] | None:
        if self._joined is None:
            invitation = self._head.invite(self._seat.name)
            if invitation is None:
                return None
            shutil.rmtree(self._folder / "identity", ignore_errors=True)
            write_private(self._folder / "join-token", invitation.token.encode())
            self._joined = invitation.place
        return node_command(self._seat, self._host, self._joined.address, self._folder)

    def _is_stale(self) -> bool:
        """A head that does not answer is no other head: the node waits for it by itself."""
        if time.monotonic() - self._asked_at_s < _ASK_EVERY_S:
            return False
        self._asked_at_s = time.monotonic()
        place = self._head.place()
        if place is None or place == self._joined:
            return False
        self._joined = None
        return True
