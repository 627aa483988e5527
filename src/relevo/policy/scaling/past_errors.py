"""How far the simulator's word about the present mode has been from what came of it: what a predicted gain must exceed.

Prediction and observation are of the same minute of requests, so a wrong forecast is not counted here, and whatever no
simulated world knows is: a death, a neighbour on the machine, a step cost that drifted. What chance makes of so few
requests is no error: a minute of forty, of which half meet the targets, is eight points from itself. Pure.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from statistics import fmean

_KEPT = 24  # comparisons: two minutes of ticks. Arbitrary


@dataclass(slots=True)
class PastErrors:
    """Parts of requests that meet the targets, of late."""

    _of_late: deque[float] = field(default_factory=lambda: deque(maxlen=_KEPT))

    def add(self, expected: float, attained: float, chance: float = 0.0) -> None:
        """`chance`: a standard error of the two."""
        self._of_late.append(max(0.0, abs(expected - attained) - chance))

    @property
    def num_compared(self) -> int:
        return len(self._of_late)

    @property
    def error(self) -> float:
        """Of the mean comparison or of the last one, whichever was worse; 0 before the first."""
        return max(fmean(self._of_late), self._of_late[-1]) if self._of_late else 0.0
