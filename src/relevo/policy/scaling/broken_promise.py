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

    def better(
        self,
        now_s: float,
        present: Mode,
        attained: float,
        outlooks: Mapping[Mode, ModeOutlook],
        blocked: Mapping[Mode, float],
        least_gain: float,
    ) -> Mode | None:
        """To which mode to go. `attained`: part of requests that is seen to meet the targets; `blocked`: until when.
        Modes that the present one's promise has beaten count, too."""
        if outlooks[present].attained - attained < 2.0 * self._limits.wide:
            self._since_s = None
            return None
        if self._since_s is None:
            self._since_s = now_s
        if now_s < max(self._since_s + self._limits.cool_down_s, self._not_before_s):
            return None
        others = [mode for mode in outlooks if mode != present and blocked.get(mode, 0.0) <= now_s]
        best = max(others, key=lambda mode: (outlooks[mode].attained, mode.num_at_work), default=None)
        return best if best is not None and outlooks[best].attained - attained >= least_gain else None

    def is_left(self, now_s: float) -> None:
        self._since_s, self._not_before_s = None, now_s + self._limits.block_s
