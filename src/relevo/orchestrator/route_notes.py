"""Why recent requests went where they went, for the clients that ask. Bounded: the oldest notes are forgotten first."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from relevo.core.ids import RequestId

MAX_REQUESTS = 4096  # arbitrary; more than a gateway usually has in flight


@dataclass(slots=True)
class RouteNotes:
    _notes: OrderedDict[RequestId, list[str]] = field(default_factory=OrderedDict)

    def add(self, request_id: RequestId, note: str) -> None:
        self._notes.setdefault(request_id, []).append(note)
        if len(self._notes) > MAX_REQUESTS:
            self._notes.popitem(last=False)

    def explain(self, request_id: RequestId) -> str:
        """One line, decisions in order; empty for a request that is unknown or long gone."""
        return " | ".join(self._notes.get(request_id, ()))
