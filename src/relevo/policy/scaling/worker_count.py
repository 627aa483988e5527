"""Decides how many workers a model should have, where the cluster can give more: the fewest that keep the targets.

A pure core beside `role_planner`: roles change first, within seconds; a worker that has to start takes longer. So it
plans for the demand that is expected when an order arrives, and orders nothing that a forecast does not reach. What is
on its way counts as there and is not ordered twice; what does not come is given up. It gives a worker back only when
the state after that keeps the targets with head-room, for a while; a number that is not known is no reason for less.
Knows no clock, no simulator, no cluster.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from relevo.policy.scaling.demand import Demand
from relevo.policy.scaling.forecast import Chosen, Constant, Kalman, Seasonal
from relevo.policy.scaling.mode_outlook import ModeOutlook


@dataclass(frozen=True, slots=True, kw_only=True)
class CountLimits:
    """All arbitrary but for what the operator sets."""

    least: int = 1  # 0: none where nothing comes, so the first request waits for a start
    most: int = 1
    goal: float = 0.95  # of requests, that have to meet the targets
    headroom: float = 1.15  # times the expected load, at which the goal has to be met
    tick_s: float = 5.0
    min_requests: int = 20  # in the window, for lengths to mean anything
    down_after_s: float = 60.0  # that fewer have to be enough
    reach_s: float = 3600.0  # farther no forecast looks
    late_factor: float = 3.0  # times its start time, after which an order is given up
    season_ticks: int = 17_280  # a day

    def __post_init__(self) -> None:
        """Raises ValueError for what no number can keep."""
        if not 0 <= self.least <= self.most or self.most < 1:
            raise ValueError(
                f"{self.least} to {self.most} workers: no number keeps that; at least 0, at most 1 or more"
            )


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
        self._enough_since_s: float | None = None  # since when one fewer would do

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
            self._enough_since_s = None
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

    def decide(self, seen: CountSeen, outlooks: Mapping[int, ModeOutlook]) -> CountDecision:
        """`outlooks`: of the best mode of so many workers under the demand of `question`; the present number, those on
        their way counted, is among them, and its neighbours as far as the limits allow; where they allow no more, one
        more for advice, or none."""
        limits, total = self._limits, seen.num_there + seen.num_coming
        present = outlooks[total]
        enough = sorted(number for number, outlook in outlooks.items() if outlook.attained >= limits.goal)
        if present.attained < limits.goal:
            self._enough_since_s = None
            return self._more(seen, total, outlooks, enough)
        fewer = [number for number in enough if limits.least <= number < total]
        if not fewer or seen.num_coming:
            self._enough_since_s = None
            return self._hold(total, f"{total} workers {_words(present)}")
        if self._enough_since_s is None:
            self._enough_since_s = seen.now_s
        if seen.now_s - self._enough_since_s < limits.down_after_s:
            return self._hold(total, f"{total - 1} workers {_words(outlooks[fewer[-1]])}; once that has lasted")
        self._enough_since_s = None
        number = fewer[-1]  # one step: what was given back takes its time to come again
        return CountDecision(
            verdict=CountVerdict.FEWER, num_workers=number, reason=f"{number} workers {_words(outlooks[number])}"
        )

    def _more(
        self, seen: CountSeen, total: int, outlooks: Mapping[int, ModeOutlook], enough: list[int]
    ) -> CountDecision:
        present = outlooks[total]
        if present.floor_ttft_s > self._ttft_s:
            reason = f"a median prompt alone takes {present.floor_ttft_s:.2f} s, which no number of workers cures"
            return CountDecision(verdict=CountVerdict.INFEASIBLE, num_workers=total, reason=reason)
        if total >= self._limits.most:
            return self._hold(
                total, f"{total} workers {_words(present)}; the cluster gives no more{_advice(outlooks, total)}"
            )
        if seen.start_s > self._reach_s:
            reason = (
                f"a worker takes {seen.start_s:.0f} s to start, and no forecast reaches beyond {self._reach_s:.0f} s"
            )
            return self._hold(total, reason)
        better = [number for number in enough if number > total]
        wanted = better[0] if better else max(outlooks, key=lambda number: (outlooks[number].attained, -number))
        if wanted <= total:
            return self._hold(total, f"{total} workers {_words(present)}, and more would not do better")
        why = f"{wanted} workers {_words(outlooks[wanted])}, {total} {_words(present)}"
        return CountDecision(verdict=CountVerdict.MORE, num_workers=wanted, reason=why)

    def _idle(self, seen: CountSeen, total: int) -> CountDecision:
        """Few requests are a number, too: the fewest workers are enough for them, and those that come need one."""
        limits, floor = self._limits, max(self._limits.least, min(1, seen.num_requests))
        if total <= floor or seen.num_coming:
            self._enough_since_s = None
            return self._hold(total, f"{seen.num_requests} requests in the window")
        if self._enough_since_s is None:
            self._enough_since_s = seen.now_s
        if seen.now_s - self._enough_since_s < limits.down_after_s:
            return self._hold(total, f"{seen.num_requests} requests in the window; fewer workers once that has lasted")
        self._enough_since_s = None
        return CountDecision(
            verdict=CountVerdict.FEWER,
            num_workers=floor,
            reason=f"{seen.num_requests} requests came in the window; {floor} is the least",
        )

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
    return f"are to meet the targets for {outlook.attained:.0%}"
