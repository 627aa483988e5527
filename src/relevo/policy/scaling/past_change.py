"""A change of mode that is looked back at: whether what came of it is worse than what was, and the words for it. Pure.

Under the same traffic it is compared with what was before: worse by more than chance makes of so few requests is taken
back, worse by less is looked at again for a while. Where traffic has become another, that says little; yet one that
keeps nothing of its promise, under no more load, is taken back then, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from math import sqrt

from relevo.policy.scaling.chance import variance_of_part
from relevo.policy.scaling.mode_outlook import ModeOutlook
from relevo.policy.scaling.modes import Mode
from relevo.policy.scaling.planner_limits import PlannerLimits

_MORE_LOAD = 1.25  # than before: what came of it is not the change's fault. Arbitrary


class Sentence(StrEnum):
    STAYS = "stays"
    TAKEN_BACK = "taken back"
    TAKEN_BACK_AS_BROKEN = "taken back as broken"  # whatever traffic comes, for a while


@dataclass(slots=True, kw_only=True)
class PastChange:
    at_s: float
    before: Mode
    attained_before: float | None
    num_judged_before: int = 0  # 0: it is exact
    rate_before_per_s: float
    expected: ModeOutlook
    num_kinds: int  # of traffic that were seen by then
    is_judged: bool = False

    def is_ripe(self, now_s: float, since_s: float, num_judged: int, limits: PlannerLimits) -> bool:
        """Enough has been seen that came after it, which is what a window since `since_s` holds."""
        is_settled = since_s >= self.at_s and now_s - self.at_s >= limits.settle_s
        return not self.is_judged and is_settled and num_judged >= limits.min_requests

    def is_open(self, now_s: float, attained: float, num_judged: int, num_kinds: int, limits: PlannerLimits) -> bool:
        """It looks worse than before, by no more than chance, and there is time for more to be seen of it."""
        if self.attained_before is None or num_kinds != self.num_kinds or now_s - self.at_s >= limits.stays_s:
            return False
        loss = self.attained_before - limits.gain - attained
        return 0.0 < loss <= self._chance(attained, num_judged)

    def _chance(self, attained: float, num_judged: int) -> float:
        """Two standard errors of the difference between before and now."""
        before = variance_of_part(self.attained_before or 0.0, self.num_judged_before)
        return 2.0 * sqrt(before + variance_of_part(attained, num_judged))

    def judge(
        self, mode: Mode, attained: float, num_judged: int, rate_per_s: float, num_kinds: int, limits: PlannerLimits
    ) -> tuple[Sentence, str]:
        """`attained`, of `num_judged` requests, and `rate_per_s`: of the window; and why."""
        self.is_judged = True
        before, expected = self.attained_before, self.expected.attained
        came_to = f"the change to {mode} came to {attained:.0%} that meet the targets, of {expected:.0%} expected"
        if before is None:
            return Sentence.STAYS, f"{came_to}; nothing is known of before"
        is_worse = attained < before - limits.gain - self._chance(attained, num_judged)
        is_more = rate_per_s > _MORE_LOAD * self.rate_before_per_s
        is_broken = expected - attained >= 2.0 * limits.wide
        is_another = num_kinds != self.num_kinds
        if is_worse and not is_more and (is_broken or not is_another):
            since = "traffic has become another, and " if is_another else ""
            reason = (
                f"{since}since the change to {mode} {attained:.0%} meet the targets, {before:.0%} did before,"
                f" {expected:.0%} were expected; not again for {limits.block_s:.0f} s"
            )
            return (Sentence.TAKEN_BACK_AS_BROKEN if is_broken else Sentence.TAKEN_BACK), reason
        if is_another:
            return Sentence.STAYS, f"{came_to}; traffic has become another, so it cannot be compared with before"
        if is_more:
            were = f"with {rate_per_s:.1f} instead of {self.rate_before_per_s:.1f} requests/s it stays"
            return Sentence.STAYS, f"{came_to}; {were}"
        return Sentence.STAYS, f"{came_to}; {before:.0%} did before"
