"""Whether far more came of late than comes now: what it left behind is still served, late, so what is seen is of that,
while the simulator is asked about what comes now. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

_RUSH = 2.0  # times as much as now. Arbitrary


@dataclass(slots=True)
class PastRush:
    remembered_s: float
    _rates: deque[tuple[float, float]] = field(default_factory=deque)  # when, and requests per second then

    def add(self, now_s: float, rate_per_s: float) -> None:
        self._rates.append((now_s, rate_per_s))
        while self._rates[0][0] < now_s - self.remembered_s:
            self._rates.popleft()

    @property
    def is_over(self) -> bool:
        return bool(self._rates) and max(rate for _, rate in self._rates) > _RUSH * self._rates[-1][1]
