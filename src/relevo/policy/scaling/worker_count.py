"""Decides how many workers a model should have, where the cluster can give more: the fewest that keep the targets.

A pure core beside `role_planner`: roles change first, within seconds; a worker that has to start takes longer. So it
plans for the demand that is expected when an order arrives, and orders nothing that a forecast does not reach. What is
on its way counts as there and is not ordered twice; what does not come is given up. Where spare workers are asked for,
the others keep the targets while those are away, so a death does not break them. Workers are given back only when those
that stay have been enough for a while, with head-room: as many at once as were not needed at any time of it. A number
that is not known is no reason for less. Knows no clock, no simulator, no cluster.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from relevo.policy.scaling.demand import Demand
from relevo.policy.scaling.enough_workers import CountLimits, fewest_enough, is_enough, search
from relevo.policy.scaling.forecast import Chosen, Constant, Kalman, Seasonal
from relevo.policy.scaling.mode_outlook import ModeOutlook


@dataclass(frozen=True, slots=True, kw_only=True)
class CountSeen:
    """What was observed when a tick began. `unknown`: why it cannot be relied on; empty: it can."""

    now_s: float
    num_there: int  # that serve
    num_coming: int  # that were ordered, or are restarting
    start_s: float  # that a worker takes from the order until it serves, as measured
    unknown: str = ""
    num_requests: int = 0
    num_waiting: int = 0  # requests that no worker is there for
    demand: Demand | None = None


class CountVerdict(StrEnum):
    HOLD = "hold"
    UNKNOWN = "unknown"
    MORE = "more"
    FEWER = "fewer"
    GIVE_UP = "give up"  # an order that did not come
    INFEASIBLE = "infeasible"  # more workers would not help
    ADOPT = "adopt"  # it was changed by hand


@dataclass(frozen=True, slots=True, kw_only=True)
class CountDecision:
    verdict: CountVerdict
    num_workers: int  # to be there, those on their way counted
    reason: str


class CountPlanner:
    def __init__(self, limits: CountLimits, ttft_s: float, start_s: float) -> None:
        """`start_s`: how far forecasts look, which is as long as a worker takes."""
        self._limits, self._ttft_s = limits, ttft_s
        self._reach_s = min(start_s, limits.reach_s)
        ticks = max(1, round(self._reach_s / limits.tick_s))
        self._rate = Chosen((Constant(), Kalman(), Seasonal(limits.season_ticks)), num_ticks_ahead=ticks)
        self._coming_since_s: float | None = None
        self._needed: deque[tuple[float, int]] = deque()  # when, and how many workers, for as long as that counts

    def question(self, seen: CountSeen) -> Demand | CountDecision:
        """The demand when what is ordered now would be there, or what is decided without."""
        limits, total = self._limits, seen.num_there + seen.num_coming
        if not total and seen.num_waiting:
            return CountDecision(
                verdict=CountVerdict.MORE,
                num_workers=1,
                reason=f"{seen.num_waiting} requests wait for a worker, which takes {seen.start_s:.0f} s to start",
            )
        if seen.unknown:
            self._needed.clear()
            return CountDecision(
                verdict=CountVerdict.UNKNOWN, num_workers=total, reason=f"not known: {seen.unknown}; nothing is changed"
            )
        self._rate.add(seen.demand.requests_per_s if seen.demand is not None else 0.0)
        if not seen.num_coming:
            self._coming_since_s = None
        elif self._coming_since_s is None:
            self._coming_since_s = seen.now_s
        elif seen.now_s - self._coming_since_s > limits.late_factor * max(seen.start_s, limits.tick_s):
            waited_s, self._coming_since_s = seen.now_s - self._coming_since_s, None
            return CountDecision(
                verdict=CountVerdict.GIVE_UP,
                num_workers=max(limits.least, seen.num_there),
                reason=f"{seen.num_coming} of {total} workers did not come in {waited_s:.0f} s",
            )
        if seen.demand is None or seen.num_requests < limits.min_requests:
            return self._idle(seen, total)
        now = seen.demand.requests_per_s
        return seen.demand.at(max(self._rate.rate_per_s(), now) / now * limits.headroom)

    def ask(self, seen: CountSeen, answer: Callable[[int], ModeOutlook]) -> dict[int, ModeOutlook]:
        """What `decide` needs. `answer`: of the best mode of so many workers under the demand of `question`."""
        return search(seen.num_there + seen.num_coming, self._limits, self._ttft_s, answer)

    def decide(self, seen: CountSeen, outlooks: Mapping[int, ModeOutlook]) -> CountDecision:
        """`outlooks`: what `ask` has found."""
        limits, total = self._limits, seen.num_there + seen.num_coming
        if not is_enough(total, outlooks, limits):
            self._needed.clear()
            return self._more(seen, total, outlooks)
        return self._fewer(
            seen, fewest_enough(total, outlooks, limits), {number: _words(each) for number, each in outlooks.items()}
        )

    def _fewer(self, seen: CountSeen, needed: int, words: Mapping[int, str]) -> CountDecision:
        """As many as were needed at any time of a while: what was given back takes its time to come again."""
        limits, total = self._limits, seen.num_there + seen.num_coming
        if seen.num_coming:
            self._needed.clear()
            return self._hold(total, f"{total} workers {words[total]}")
        self._needed.append((seen.now_s, needed))
        since_s = seen.now_s - limits.down_after_s
        while len(self._needed) > 1 and self._needed[1][0] <= since_s:
            self._needed.popleft()
        most = min(total, max(number for _, number in self._needed))
        if needed == total or most == total:
            return self._hold(total, f"{total} workers {words[total]}")
        if self._needed[0][0] > since_s:
            return self._hold(total, f"{needed} workers {words[needed]}; once that has lasted")
        return CountDecision(verdict=CountVerdict.FEWER, num_workers=most, reason=f"{most} workers {words[most]}")

    def _more(self, seen: CountSeen, total: int, outlooks: Mapping[int, ModeOutlook]) -> CountDecision:
        limits, present = self._limits, outlooks[total]
        if present.floor_ttft_s > self._ttft_s:
            reason = f"a median prompt alone takes {present.floor_ttft_s:.2f} s, which no number of workers cures"
            return CountDecision(verdict=CountVerdict.INFEASIBLE, num_workers=total, reason=reason)
        if total >= limits.most:
            return self._hold(
                total, f"{total} workers {_words(present)}; the cluster gives no more{_advice(outlooks, total)}"
            )
        if seen.start_s > self._reach_s:
            reason = (
                f"a worker takes {seen.start_s:.0f} s to start, and no forecast reaches beyond {self._reach_s:.0f} s"
            )
            return self._hold(total, reason)
        possible = sorted(number for number in outlooks if number <= limits.most)
        enough = [number for number in possible if number > total and is_enough(number, outlooks, limits)]
        wanted = enough[0] if enough else self._of_most_worth(possible, outlooks)
        if wanted <= total:
            return self._hold(total, f"{total} workers {_words(present)}, and more would not do better")
        why = f"{wanted} workers {_words(outlooks[wanted])}, {total} {_words(present)}"
        if present.attained >= limits.goal:
            left = total - limits.spare
            why += (
                f"; if {limits.spare} died, {left} {_words(outlooks[left])}" if left in outlooks else "; none is spare"
            )
        return CountDecision(verdict=CountVerdict.MORE, num_workers=wanted, reason=why)

    def _of_most_worth(self, possible: Sequence[int], outlooks: Mapping[int, ModeOutlook]) -> int:
        """Where no number is enough: of those that are as good the fewest."""

        def worth(number: int) -> tuple[float, float, float, int]:
            left = outlooks.get(number - self._limits.spare)
            return *outlooks[number].worth, left.attained if left is not None else 0.0, -number

        best = max(possible, key=worth)
        if not outlooks[best].misses_all:
            return best
        return min(number for number in possible if not outlooks[best].is_sooner_than(outlooks[number]))

    def _idle(self, seen: CountSeen, total: int) -> CountDecision:
        """Few requests are a number, too: the fewest workers are enough for them, and those that come need one."""
        limits = self._limits
        floor = limits.fewest_at_work if seen.num_requests else limits.least
        came = f"{seen.num_requests} requests came in the window"
        if total < floor:
            self._needed.clear()
            return CountDecision(
                verdict=CountVerdict.MORE, num_workers=floor, reason=f"{came}; {floor} is the least where some come"
            )
        return self._fewer(seen, floor, dict.fromkeys(range(total + 1), f"are enough: {came}; {floor} is the least"))

    def _hold(self, total: int, reason: str) -> CountDecision:
        return CountDecision(verdict=CountVerdict.HOLD, num_workers=total, reason=reason)


def _advice(outlooks: Mapping[int, ModeOutlook], total: int) -> str:
    """What more workers than there may be would do, where that was asked."""
    beyond = outlooks.get(total + 1)
    if beyond is None:
        return ""
    gain = beyond.attained - outlooks[total].attained
    return f": one more would make it {beyond.attained:.0%}" if gain > 0.0 else ": one more would not do better"


def _words(outlook: ModeOutlook) -> str:
    late = f" and to answer in {outlook.answer_s:.0f} s" if outlook.misses_all and outlook.answer_s is not None else ""
    return f"are to meet the targets for {outlook.attained:.0%}{late}"
