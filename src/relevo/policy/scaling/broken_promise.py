"""A mode of which far less is seen than the simulator promises, for a while, is left, whatever is promised of it. Pure.

One look says little, as a line that stands from before is seen and not promised; and a machine on which every promise
is broken is not to be driven from mode to mode, so one is left for this reason only now and then. That traffic becomes
another is no excuse: neither what was seen of the mode nor that it was left is forgotten for it.
"""

from __future__ import annotations

from collections.abc import Mapping

from relevo.policy.scaling.mode_outlook import ModeOutlook
from relevo.policy.scaling.modes import Mode
from relevo.policy.scaling.planner_limits import PlannerLimits


class BrokenPromise:
    def __init__(self, limits: PlannerLimits) -> None:
        self._limits = limits
        self._broken: tuple[Mode, float] | None = None  # whose promise, and since when
        self._left: dict[Mode, float] = {}  # until when it is not gone back to
        self._not_before_s = 0.0

    def is_kept(self) -> None:
        """About as much is seen as is promised."""
        self._broken = None

    def bars(self, mode: Mode, now_s: float) -> bool:
        """It was left for this reason of late."""
        return self._left.get(mode, 0.0) > now_s

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
            self._broken = None
            return None
        if self._broken is None or self._broken[0] != present:
            self._broken = (present, now_s)
        if now_s < max(self._broken[1] + self._limits.cool_down_s, self._not_before_s):
            return None
        others = [
            mode
            for mode in outlooks
            if mode != present and blocked.get(mode, 0.0) <= now_s and not self.bars(mode, now_s)
        ]
        best = max(others, key=lambda mode: (outlooks[mode].attained, mode.num_at_work), default=None)
        return best if best is not None and outlooks[best].attained - attained >= least_gain else None

    def is_left(self, mode: Mode, now_s: float) -> None:
        until_s = now_s + self._limits.block_s
        self._broken, self._not_before_s, self._left[mode] = None, until_s, until_s
