"""A mode of which far less is seen than the simulator promises, for a while, is left, whatever is promised of it. Pure.

One look says little, as a line that stands from before is seen and not promised; and a machine on which every promise
is broken is not to be driven from mode to mode, so one is left for this reason only now and then.
"""

from __future__ import annotations

from collections.abc import Mapping

from relevo.policy.scaling.mode_outlook import ModeOutlook
from relevo.policy.scaling.modes import Mode
from relevo.policy.scaling.planner_limits import PlannerLimits


class BrokenPromise:
    def __init__(self, limits: PlannerLimits) -> None:
        self._limits = limits
        self._since_s: float | None = None  # that the promise is broken
        self._not_before_s = 0.0

    def is_kept(self) -> None:
        """Nothing is seen, or about as much as is promised."""
        self._since_s = None

    def look(self, now_s: float, promised: float, seen: float) -> bool:
        """Whether it has been broken for long enough. `promised`, `seen`: parts of requests that meet the targets."""
        if promised - seen < 2.0 * self._limits.wide:
            self._since_s = None
            return False
        if self._since_s is None:
            self._since_s = now_s
        return now_s >= max(self._since_s + self._limits.cool_down_s, self._not_before_s)

    def is_left(self, now_s: float) -> None:
        self._since_s, self._not_before_s = None, now_s + self._limits.block_s


def best_of_others(
    outlooks: Mapping[Mode, ModeOutlook], present: Mode, blocked: Mapping[Mode, float], now_s: float
) -> Mode | None:
    """Where most is promised, also of those that the present mode's promise has beaten; None: there is no other."""
    others = [mode for mode in outlooks if mode != present and blocked.get(mode, 0.0) <= now_s]
    return max(others, key=lambda mode: (outlooks[mode].attained, mode.num_at_work), default=None)
