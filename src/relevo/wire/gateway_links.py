"""The worker's side of its connections to gateways, as its step loop sees them.

Owns the words only: a peer, its end, and what can be done with it. `wire.server.WireServer` implements them over
sockets, `wire.in_process_links.InProcessLinks` without; tests/contract/test_gateway_links.py holds both to this.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from relevo.core.events import WireRefusal
from relevo.core.ids import PeerId
from relevo.wire.messages import ToGateway, ToWorker


@dataclass(frozen=True, slots=True)
class PeerGone:
    """The connection ended; this is the last thing that comes from the peer."""

    reason: str


class GatewayLinks(Protocol):
    """For one thread, `wake` excepted. A new peer gets the worker's Hello before anything else."""

    @property
    def peer_ids(self) -> tuple[PeerId, ...]:
        """Of those that are connected now."""
        ...

    @property
    def num_refused_connections(self) -> Mapping[WireRefusal, int]:
        """Since the start, by reason."""
        ...

    def poll(self, timeout_s: float | None) -> list[tuple[PeerId, ToWorker | PeerGone]]:
        """Send what is buffered and return what has arrived, in order per peer. Waits for at least one message or
        PeerGone, for `wake`, or for `timeout_s` (None: no limit; 0: not at all); only then the list may be empty."""
        ...

    def send(self, peer_id: PeerId, message: ToGateway) -> None:
        """Never waits. Nothing happens for a peer that is gone: `poll` says or has said so."""
        ...

    def drop(self, peer_id: PeerId, reason: str) -> None:
        """End the connection; `poll` returns its PeerGone. Nothing happens for a peer that is gone."""
        ...

    def num_unsent_bytes(self, peer_id: PeerId) -> int:
        """How far the peer is behind with reading; 0 for a peer that is gone."""
        ...

    def wake(self) -> None:
        """Make `poll` return, now or when next called. From any thread or a signal handler."""
        ...

    def close(self) -> None:
        """End every connection. Idempotent."""
        ...
