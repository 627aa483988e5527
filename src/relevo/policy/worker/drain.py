"""A worker on its way out: each gateway hears of it once, and it is over when nothing is left or its time is.

Owns whether it was asked for and when it ends. Does not know requests, only how many there are.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from relevo.core.ids import PeerId


@dataclass(slots=True)
class Drain:
    timeout_s: float  # how long it waits for what runs
    is_asked: bool = False
    _ends_at_ns: int | None = None  # set when it began
    _told: set[PeerId] = field(default_factory=set)

    def ask(self) -> None:
        """Called from a signal handler too: only notes it."""
        self.is_asked = True

    def untold(self, gateways: Iterable[PeerId]) -> list[PeerId]:
        """Those of the gateways that are to hear of it now."""
        if not self.is_asked:
            return []
        new = [gateway for gateway in gateways if gateway not in self._told]
        self._told.update(new)
        return new

    def may_leave(self, num_requests: int, now_ns: int) -> bool:
        """Nothing is left, or what is left is to be continued elsewhere."""
        if not self.is_asked:
            return False
        if self._ends_at_ns is None:
            self._ends_at_ns = now_ns + round(self.timeout_s * 1e9)
        return not num_requests or now_ns >= self._ends_at_ns

    def patience_s(self, now_ns: int) -> float | None:
        """How long the loop may sleep when there is nothing to do; None: no limit."""
        if self._ends_at_ns is None:
            return None
        return max(0.0, (self._ends_at_ns - now_ns) / 1e9)
