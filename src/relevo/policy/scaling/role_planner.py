"""Decides when the workers of a model should share their work in another way, and whether that was a good idea.

A pure core: `question` says what to find out about which demand, a driver asks the simulator, `decide` says what to do
with the answers. It acts on what comes in, not on what comes out; it holds when something is not known; it changes only
for a clear and lasting gain in requests that meet the targets, now or in a surge, above what the change itself costs
and above the error of its predictions of late, and not more often than the cool-down allows; it looks back at each
change, and takes it back if what came of it is worse than what was. Where another mode promises far more, and many
requests are seen to miss the targets or predictions were right of late, one look at few requests is enough: waiting
loses more. It plans for the workers that are there. A change by hand is adopted. Knows no clock, no simulator, no
messages.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from math import inf, sqrt

from relevo.policy.scaling.broken_promise import BrokenPromise
from relevo.policy.scaling.chance import variance_of_part
from relevo.policy.scaling.demand import Demand
from relevo.policy.scaling.forecast import Chosen, Constant, Kalman, Seasonal
from relevo.policy.scaling.mode_outlook import ModeOutlook
from relevo.policy.scaling.modes import Mode
from relevo.policy.scaling.outlook_words import broken, doubts, next_best, words
from relevo.policy.scaling.past_change import PastChange, Sentence
from relevo.policy.scaling.past_errors import PastErrors
from relevo.policy.scaling.past_rush import PastRush
from relevo.policy.scaling.planner_limits import PlannerLimits

_SWITCHES = 8  # of late, whose times say what the next one takes. Arbitrary
_MORE_LOAD = 1.25  # than before a change: what came of it is not the change's fault. Arbitrary


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What was observed when a tick began. `unknown`: why it cannot be relied on; empty: it can."""

    now_s: float
    mode: Mode  # of the workers that are there
    unknown: str = ""
    away: tuple[str, ...] = ()  # workers that are not there
    num_requests: int = 0  # that came in the window
    demand: Demand | None = None  # of the window; None without requests
    attained: float | None = None  # part of those that ended in the window that met both targets
    num_judged: int = 0  # that ended in the window
    since_s: float = 0.0  # when the window begins
    num_kinds: int = 0  # of traffic that were seen before the window's


class PlanVerdict(StrEnum):
    START = "start"  # from what was asked for before
    HOLD = "hold"
    UNKNOWN = "unknown"  # something is not known, so nothing is done
    CHANGE = "change"
    UNDO = "undo"
    KEEP = "keep"  # a change was looked back at, and stays
    ADOPT = "adopt"  # it was changed by hand
    INFEASIBLE = "infeasible"  # no mode meets the targets, nor could it


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanDecision:
    verdict: PlanVerdict
    reason: str  # one line
    mode: Mode  # from now on
    expected: ModeOutlook | None = None
    outlooks: Mapping[str, ModeOutlook] = field(default_factory=dict)  # by mode
    forecast: str = ""  # that was believed
    rate_per_s: float | None = None  # that was expected


class RolePlanner:
    def __init__(self, limits: PlannerLimits, ttft_s: float, itl_s: float, *, acts: bool = True) -> None:
        """Targets, in seconds: of the time to the first token, and between tokens. Not `acts`: what it decides is said
        and not done, so it finds everything as it was."""
        self._limits = limits
        self._ttft_s, self._itl_s, self._acts = ttft_s, itl_s, acts
        self._rate = Chosen(
            (Constant(), Kalman(), Seasonal(limits.season_ticks)), num_ticks_ahead=limits.num_ticks_ahead
        )
        self._rush = PastRush(limits.stays_s)
        self._mode: Mode | None = None  # that it set, or found
        self._switch_s: deque[float] = deque(maxlen=_SWITCHES)  # until all roles had arrived
        self._joined_at_s = -inf  # when a worker came or went last
        self._change: PastChange | None = None  # the last
        self._arriving: tuple[float, Mode, float] | None = (
            None  # of roles: since when, from which mode, seen so for how long
        )
        self._held_until_s = 0.0  # by a hand
        self._cools_until_s = 0.0
        self._num_kinds = 0
        self._blocked: dict[Mode, float] = {}  # until when
        self._favourite: tuple[Mode, int] | None = None  # and in how many ticks in a row
        self._same_since_s = -inf  # that the workers have their mode
        self.past = PastErrors()
        self._promise = BrokenPromise(limits)  # of the present mode
        self.num_changes = 0
        self.num_unknown_ticks = 0

    def question(self, seen: Seen) -> Demand | PlanDecision:
        """What is to be found out of each mode, or what is decided without."""
        limits = self._limits
        if seen.unknown:
            self.num_unknown_ticks += 1
            return self._hold(seen, f"not known: {seen.unknown}", PlanVerdict.UNKNOWN)
        rate = seen.demand.requests_per_s if seen.demand is not None else 0.0
        self._rate.add(rate)
        self._rush.add(seen.now_s, rate)
        if seen.num_kinds != self._num_kinds:  # what was found out about other traffic does not count
            self._num_kinds, self._favourite, self._cools_until_s = seen.num_kinds, None, 0.0
            self._blocked.clear()
        if self._mode is None:
            self._mode = seen.mode
        if self._mode != seen.mode or self._arriving is not None:
            self._same_since_s = seen.now_s
        if self._mode.workers != seen.mode.workers:
            self._mode, self._change, self._arriving, self._favourite = seen.mode, None, None, None
            self._joined_at_s = seen.now_s
        if seen.mode == self._mode:
            if self._arriving is not None:
                since_s, _, away_s = self._arriving
                self._switch_s.append((seen.now_s - since_s + away_s) / 2.0)  # between two looks
            self._arriving = None
        elif self._arriving is not None:
            return self._not_arrived(seen, *self._arriving[:2])
        elif seen.now_s - self._joined_at_s < limits.arrive_s:
            self._mode = seen.mode  # who joined has its role by now
        else:
            was, self._mode, self._change, self._favourite = self._mode, seen.mode, None, None
            self._held_until_s = seen.now_s + limits.hand_hold_s
            reason = f"{was} was changed to {seen.mode} by hand, which holds for {limits.hand_hold_s:.0f} s"
            return self._hold(seen, reason, PlanVerdict.ADOPT)
        if undo := self._look_back(seen):
            return undo
        if seen.now_s < (until_s := max(self._held_until_s, self._cools_until_s)):
            return self._hold(seen, f"{until_s - seen.now_s:.0f} s until the next change")
        is_enough = self._is_missing(seen) or (seen.num_kinds and self.past.num_compared >= limits.min_compared)
        needed = limits.few_requests if is_enough else limits.min_requests
        if seen.demand is None or seen.num_requests < needed:
            self._favourite = None
            return self._hold(seen, f"{seen.num_requests} requests in the window, {needed} are needed")
        return self._expected(seen.demand)

    def decide(self, seen: Seen, outlooks: Mapping[Mode, ModeOutlook]) -> PlanDecision:
        """`outlooks`: of every mode, the present one among them, under the demand of `question`."""
        present = outlooks[seen.mode]
        error_now = self._compare(seen, present)
        allowed = {m: o for m, o in outlooks.items() if m == seen.mode or self._is_allowed(m, o, seen)}
        best = self._best(allowed, present)
        gain, noise = allowed[best].better_by(present), allowed[best].noise(present)
        told = self._told(seen, outlooks)
        if best == seen.mode or gain < self._least_gain(seen, noise):
            self._favourite = None
            if left := self._leave(seen, outlooks, told):
                return left
            floor_s = min(outlook.floor_ttft_s for outlook in outlooks.values())
            if floor_s > self._ttft_s:
                alone = f"a median prompt alone takes {floor_s:.2f} s on these workers"
                reason = f"{alone}, the target is {self._ttft_s:g} s"
                return self._hold(seen, reason, PlanVerdict.INFEASIBLE, told)
            told_best = f"{seen.mode} {words(present)}; {next_best(seen.mode, outlooks)}"
            return self._hold(seen, told_best + self._doubts(seen, gain, noise), told=told)
        count = self._favourite[1] + 1 if self._favourite is not None and self._favourite[0] == best else 1
        self._favourite = (best, count)
        why = f"{best} {words(outlooks[best])}, {seen.mode} {words(present)}"
        error = self._error_of_one_look(seen, error_now)
        if error is None or gain < self._limits.wide + error:
            if count < self._limits.num_ticks_of_gain or seen.num_requests < self._limits.min_requests:
                return self._hold(seen, f"{why}; once more to be sure", told=told)
            if self.past.num_compared < self._limits.min_compared:
                lacking = f"{self.past.num_compared} predictions have been compared with what came of them"
                return self._hold(seen, f"{why}; {lacking}, {self._limits.min_compared} are needed", told=told)
        return self._act(seen, best, self._change_to(seen, outlooks[best]), why, told)

    def _change_to(self, seen: Seen, expected: ModeOutlook) -> PastChange:
        return PastChange(
            at_s=seen.now_s,
            before=seen.mode,
            attained_before=seen.attained,
            num_judged_before=seen.num_judged,
            rate_before_per_s=seen.demand.requests_per_s if seen.demand is not None else 0.0,
            expected=expected,
            num_kinds=seen.num_kinds,
        )

    def _leave(
        self, seen: Seen, outlooks: Mapping[Mode, ModeOutlook], told: Mapping[str, ModeOutlook]
    ) -> PlanDecision | None:
        """Out of a mode that has not been for a while what is promised of it."""
        limits, promised, blocked = self._limits, outlooks[seen.mode].attained, self._blocked
        if seen.since_s < self._same_since_s or self._rush.is_over:
            return None  # what is seen is not of this mode, or of more load
        if seen.attained is None or seen.num_judged < limits.min_requests:
            return None  # nothing is known of it, so it is neither kept nor broken
        if not self._is_missing(seen):
            self._promise.is_kept()
            return None
        least = limits.wide + self.switch_cost
        other = self._promise.better(seen.now_s, seen.mode, seen.attained, outlooks, blocked, least)
        if other is None:
            return None
        self._promise.is_left(seen.mode, seen.now_s)
        why = broken(seen.mode, promised, seen.attained, limits.block_s)
        change = self._change_to(seen, outlooks[other])
        return self._act(seen, other, change, f"{why}; {other} {words(outlooks[other])}", told)

    def _error_of_one_look(self, seen: Seen, error_now: float | None) -> float | None:
        """How far the simulator's word is from what is seen where many requests miss the targets, or was of late; None:
        one look is not enough."""
        if error_now is not None and self._is_missing(seen):
            return error_now
        return self.past.error if self.past.num_compared >= self._limits.min_compared else None

    def _is_missing(self, seen: Seen) -> bool:
        """Many requests are seen to miss the targets, in the mode that the workers have."""
        limits = self._limits
        if seen.attained is None or seen.num_judged < limits.few_judged or seen.since_s < self._same_since_s:
            return False
        return seen.attained <= 1.0 - limits.wide

    def _is_allowed(self, mode: Mode, outlook: ModeOutlook, seen: Seen) -> bool:
        is_blocked = self._blocked.get(mode, 0.0) > seen.now_s or self._promise.bars(mode, seen.now_s)
        return not outlook.is_beaten and not is_blocked

    def _best(self, allowed: Mapping[Mode, ModeOutlook], present: ModeOutlook) -> Mode:
        """Of those that are about as good, one in which most workers serve: its death takes the least with it."""
        gains = {mode: outlook.better_by(present) for mode, outlook in allowed.items()}
        near = [mode for mode, gain in gains.items() if gain > max(gains.values()) - self._limits.gain]
        return max(near, key=lambda mode: (mode.num_at_work, gains[mode]))

    @property
    def switch_cost(self) -> float:
        """Of requests that meet the targets, as if none did until every worker has its new role: the part of the time
        that a mode has to stay. As long as switches have taken of late."""
        return min(1.0, max(self._switch_s, default=0.0) / self._limits.stays_s)

    def least_gain(self, noise: float = 0.0, attained: float = 1.0) -> float:
        """That a change must promise: a clear one, above what it costs, and above what predictions were off of late and
        what chance makes of so few simulated requests, whichever is more. A change that was foretold wrongly loses no
        more than is `attained` now."""
        error = min(self._limits.error_weight * self.past.error, attained)
        return self._limits.gain + self.switch_cost + max(error, noise)

    def _least_gain(self, seen: Seen, noise: float) -> float:
        return self.least_gain(noise, seen.attained if seen.attained is not None and self._is_missing(seen) else 1.0)

    def _compare(self, seen: Seen, present: ModeOutlook) -> float | None:
        """What the simulator says of the present mode under the window's load, with what the window has seen of it:
        how far these are apart; None: they are not of the same load, or too little was seen."""
        limits = self._limits
        if seen.since_s < self._same_since_s or seen.num_judged < limits.few_judged:
            return None
        if seen.attained is None or seen.demand is None:
            return None
        asked = self._expected(seen.demand).requests_per_s
        came = seen.num_requests / max(1e-9, seen.now_s - seen.since_s)
        if asked > _MORE_LOAD * came or self._rush.is_over:
            return None
        if seen.num_judged >= limits.min_requests:
            variance = sum(
                variance_of_part(part, number)
                for part, number in ((seen.attained, seen.num_judged), (present.attained, present.num_judged))
            )
            self.past.add(present.attained, seen.attained, sqrt(variance))
        return abs(present.attained - seen.attained)

    def _doubts(self, seen: Seen, gain: float, noise: float) -> str:
        """Why a gain that would do otherwise does not."""
        error = self._limits.error_weight * self.past.error
        if gain < self._limits.gain + self.switch_cost or not max(error, noise):
            return ""
        return doubts(noise, self.past.error if noise <= error else None)

    def unanswered(self, seen: Seen, why: str) -> PlanDecision:
        """Nothing was found out about `question`'s demand that still counts."""
        self._favourite = None
        self.num_unknown_ticks += 1
        return self._hold(seen, f"not known: {why}", PlanVerdict.UNKNOWN)

    def stand_back(self, seen: Seen, why: str) -> PlanDecision:
        """Another planner decides. What it does is no change by hand, should this one have to take over."""
        self._mode, self._change, self._arriving, self._favourite = None, None, None, None
        return self._hold(seen, why)

    def not_done(self, seen: Seen, why: str) -> PlanDecision:
        """What was decided last could not be carried out: everything is as it was."""
        self._mode, self._change, self._arriving = seen.mode, None, None
        self.num_changes -= 1
        return self._hold(seen, f"nothing was changed: {why}")

    def begin(self, seen: Seen, outlooks: Mapping[Mode, ModeOutlook], source: str) -> PlanDecision:
        """The mode to start in, by what each would have made of the traffic of `source`; as it is, for less than a
        clear gain. What comes of it is looked back at as at a change."""
        present = outlooks[seen.mode]
        best = max(outlooks, key=lambda mode: outlooks[mode].better_by(present))
        least = self._limits.gain + outlooks[best].noise(present)
        chosen = best if outlooks[best].better_by(present) >= least else seen.mode
        assert seen.demand is not None, "it is what was asked about"
        self._mode = seen.mode
        self._change = self._change_to(replace(seen, attained=None), outlooks[chosen])
        if self._acts and chosen != seen.mode:
            self._mode, self._arriving = chosen, (seen.now_s, seen.mode, 0.0)
        reason = (
            f"by {source}, {seen.demand.requests_per_s:.2f} requests/s: {chosen} {words(outlooks[chosen])};"
            f" {next_best(chosen, outlooks)}"
        )
        return PlanDecision(
            verdict=PlanVerdict.START,
            reason=reason,
            mode=chosen,
            expected=outlooks[chosen],
            outlooks=self._told(seen, outlooks),
            rate_per_s=seen.demand.requests_per_s,
        )

    def _not_arrived(self, seen: Seen, since_s: float, before: Mode) -> PlanDecision:
        """Not every worker has the role that it was given: one that computes a long step takes it later."""
        limit_s, asked = self._limits.arrive_s, self._mode
        assert asked is not None
        were, wanted = dict(before.roles), dict(asked.roles)
        is_on_its_way = all(role in (were.get(worker), wanted.get(worker)) for worker, role in seen.mode.roles)
        if is_on_its_way and seen.now_s - since_s < limit_s:
            self._arriving = (since_s, before, seen.now_s - since_s)
            return self._hold(seen, f"not every worker has its role of {asked} yet", PlanVerdict.UNKNOWN)
        self._mode, self._change, self._arriving = seen.mode, None, None
        if not is_on_its_way:
            self._held_until_s = seen.now_s + self._limits.hand_hold_s
            return self._hold(
                seen, f"{asked} was changed to {seen.mode} by hand before it was there", PlanVerdict.ADOPT
            )
        self._blocked[asked] = seen.now_s + self._limits.block_s
        return self._hold(seen, f"{asked} did not come about in {limit_s:.0f} s; {seen.mode} it is", PlanVerdict.ADOPT)

    def _expected(self, demand: Demand) -> Demand:
        """Not less than now: what is said to go away is believed when it has gone."""
        rate = max(self._rate.rate_per_s(), demand.requests_per_s)
        return demand.at(rate / demand.requests_per_s) if demand.requests_per_s > 0.0 else demand

    def _act(
        self, seen: Seen, mode: Mode, change: PastChange | None, why: str, told: Mapping[str, ModeOutlook]
    ) -> PlanDecision:
        self._favourite = None
        if self._acts:
            self._mode, self._change = mode, change
            self._arriving = (seen.now_s, seen.mode, 0.0)
        self._cools_until_s = seen.now_s + self._limits.cool_down_s
        self.num_changes += 1
        verdict = PlanVerdict.CHANGE if change is not None else PlanVerdict.UNDO
        expected = change.expected if change is not None else None
        return PlanDecision(
            verdict=verdict,
            reason=why,
            mode=mode,
            expected=expected,
            outlooks=told,
            forecast=self._rate.name,
            rate_per_s=self._rate.rate_per_s(),
        )

    def _look_back(self, seen: Seen) -> PlanDecision | None:
        """What came of the last change, once enough has been seen since; it is taken back if that is worse than what
        was, under no more load."""
        change, limits = self._change, self._limits
        if change is None or seen.attained is None:
            return None
        if not change.is_ripe(seen.now_s, seen.since_s, seen.num_judged, limits):
            return None
        if change.is_open(seen.now_s, seen.attained, seen.num_judged, seen.num_kinds, limits):
            return None
        rate = seen.demand.requests_per_s if seen.demand is not None else 0.0
        sentence, reason = change.judge(seen.mode, seen.attained, seen.num_judged, rate, seen.num_kinds, limits)
        if sentence is Sentence.STAYS:
            return self._hold(seen, reason, PlanVerdict.KEEP)
        self._blocked[seen.mode] = seen.now_s + limits.block_s
        if sentence is Sentence.TAKEN_BACK_AS_BROKEN:
            self._promise.is_left(seen.mode, seen.now_s)
        return self._act(seen, change.before, None, reason, {})

    def _hold(
        self,
        seen: Seen,
        reason: str,
        verdict: PlanVerdict = PlanVerdict.HOLD,
        told: Mapping[str, ModeOutlook] | None = None,
    ) -> PlanDecision:
        return PlanDecision(
            verdict=verdict,
            reason=reason,
            mode=seen.mode,
            outlooks=told or {},
            forecast=self._rate.name,
            rate_per_s=self._rate.rate_per_s(),
        )

    def _told(self, seen: Seen, outlooks: Mapping[Mode, ModeOutlook]) -> dict[str, ModeOutlook]:
        return {mode.name: outlook for mode, outlook in outlooks.items()}
