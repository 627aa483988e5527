"""Tells gateways what this worker's prefix cache holds: one numbered batch per step, to those that follow.

Owns the numbers and the followers. A gateway that is behind with reading is left out instead of buffered for: it sees
the gap in the numbers when it reads on, and asks to follow anew, which is answered with a snapshot. So a slow gateway
costs at most `MAX_UNREAD_BYTES` here. Does not know requests.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from relevo.core.ids import PeerId
from relevo.policy.worker.block_pool import BlockPool
from relevo.wire import messages as wire
from relevo.wire.gateway_links import GatewayLinks

MAX_UNREAD_BYTES = 1024 * 1024  # arbitrary; of everything that a follower has yet to read


@dataclass(slots=True)
class CacheFeed:
    pool: BlockPool
    links: GatewayLinks
    _followers: set[PeerId] = field(default_factory=set)
    _sequence: int = 0

    def follow(self, peer: PeerId) -> None:
        """Send everything now, and batches from here on. Following twice is asking for a new snapshot."""
        self.publish()
        self._followers.add(peer)
        self.links.send(peer, wire.CacheSnapshot(self._sequence, self.pool.cached_hashes))

    def unfollow(self, peer: PeerId) -> None:
        """Idempotent."""
        self._followers.discard(peer)

    def publish(self) -> None:
        """What changed since the last call, to every follower that keeps up."""
        stored, evicted = self.pool.take_cache_changes()
        if not stored and not evicted:
            return
        self._sequence += 1
        batch = wire.CacheEvents(self._sequence, stored, evicted)
        for peer in self._followers:
            if self.links.num_unsent_bytes(peer) <= MAX_UNREAD_BYTES:
                self.links.send(peer, batch)
