"""Rooms in quarantine, and which gateway will say that their writers have let go.

A gateway that dies leaves rooms behind into which a prefill worker may still write, and nobody who would ask that
worker. Every other gateway is told of them, asks all workers to let go, and releases them. Pure bookkeeping.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from relevo.core.ids import RequestId
from relevo.wire.gateway_links import PeerId


@dataclass(slots=True)
class Orphans:
    _keepers: dict[RequestId, PeerId | None] = field(default_factory=dict)  # None: its gateway is gone

    def quarantined(self, request_id: RequestId, keeper: PeerId) -> None:
        """`keeper` aborted the request and will release its room."""
        self._keepers[request_id] = keeper

    def released(self, request_id: RequestId) -> None:
        """Idempotent; unknown requests: no effect."""
        self._keepers.pop(request_id, None)

    def lose(self, keeper: PeerId) -> bool:
        """The gateway is gone. True if it left rooms behind."""
        left = [request_id for request_id, peer in self._keepers.items() if peer == keeper]
        self._keepers.update(dict.fromkeys(left))
        return bool(left)

    @property
    def request_ids(self) -> tuple[RequestId, ...]:
        """Of the rooms that any gateway may see to now."""
        return tuple(request_id for request_id, peer in self._keepers.items() if peer is None)
