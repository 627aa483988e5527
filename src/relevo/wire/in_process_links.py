"""`GatewayLinks` without sockets: messages pass between a worker and its gateways as objects, in one thread.

For a worker that is driven by another loop in the same process, be it on virtual time: that loop waits, not `poll`.
Knows no latency: what the worker sends is handed to the peer's `receive` at once, which may deliver it later.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from relevo.core.events import WireRefusal
from relevo.core.ids import PeerId
from relevo.wire.gateway_links import PeerGone
from relevo.wire.messages import Hello, ToGateway, ToWorker


class _Peer(NamedTuple):
    receive: Callable[[ToGateway], None]
    on_close: Callable[[], None]


class InProcessLinks:
    """Implements wire.gateway_links.GatewayLinks."""

    def __init__(
        self, on_connect: Callable[[], Hello] | None = None, on_ready: Callable[[], None] | None = None
    ) -> None:
        """`on_connect` makes the Hello that every new peer gets first. `on_ready` is called when `poll` has something
        to return; it must not call `poll` itself."""
        self.on_connect = on_connect
        self.on_ready = on_ready
        self.num_refused_connections: dict[WireRefusal, int] = {}
        self._peers: dict[PeerId, _Peer] = {}
        self._inbox: list[tuple[PeerId, ToWorker | PeerGone]] = []
        self._num_peers = 0
        self._is_woken = False

    # ---- the gateway's end -------------------------------------------------------------------------------------------

    def connect(self, receive: Callable[[ToGateway], None], on_close: Callable[[], None] = lambda: None) -> PeerId:
        """`receive` is called with everything that the worker sends, Hello first; `on_close` if the worker closes."""
        assert self.on_connect is not None, "set on_connect before the first peer"
        peer_id = PeerId(self._num_peers)
        self._num_peers += 1
        self._peers[peer_id] = _Peer(receive, on_close)
        receive(self.on_connect())
        return peer_id

    def deliver(self, peer_id: PeerId, message: ToWorker) -> None:
        """A message of the peer arrives. Nothing happens for a peer that is gone."""
        if peer_id in self._peers:
            self._arrive(peer_id, message)

    def disconnect(self, peer_id: PeerId, reason: str = "it closed the connection") -> None:
        """The connection ends at the gateway's end. Idempotent."""
        if self._peers.pop(peer_id, None) is not None:
            self._arrive(peer_id, PeerGone(reason))

    def _arrive(self, peer_id: PeerId, message: ToWorker | PeerGone) -> None:
        self._inbox.append((peer_id, message))
        if self.on_ready is not None:
            self.on_ready()

    # ---- the worker's end --------------------------------------------------------------------------------------------

    @property
    def peer_ids(self) -> tuple[PeerId, ...]:
        return tuple(self._peers)

    def poll(self, timeout_s: float | None) -> list[tuple[PeerId, ToWorker | PeerGone]]:
        assert timeout_s == 0.0 or self._inbox or self._is_woken, "what drives this worker waits, see on_ready"
        self._is_woken = False
        arrived, self._inbox = self._inbox, []
        return arrived

    def send(self, peer_id: PeerId, message: ToGateway) -> None:
        peer = self._peers.get(peer_id)
        if peer is not None:
            peer.receive(message)

    def drop(self, peer_id: PeerId, reason: str) -> None:
        peer = self._peers.pop(peer_id, None)
        if peer is not None:
            self._arrive(peer_id, PeerGone(reason))
            peer.on_close()

    def num_unsent_bytes(self, peer_id: PeerId) -> int:
        return 0

    def wake(self) -> None:
        self._is_woken = True
        if self.on_ready is not None:
            self.on_ready()

    def close(self) -> None:
        peers, self._peers = self._peers, {}
        for peer_id, peer in peers.items():
            self._inbox.append((peer_id, PeerGone("this worker closed it")))
            peer.on_close()
