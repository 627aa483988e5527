"""How many workers: in small worlds in which so many serve so many requests per second, tick by tick."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relevo.policy.scaling.demand import Demand, Sample
from relevo.policy.scaling.enough_workers import CountLimits
from relevo.policy.scaling.mode_outlook import ModeOutlook
from relevo.policy.scaling.worker_count import CountDecision, CountPlanner, CountSeen, CountVerdict

LIMITS = CountLimits(most=8)
OF_ONE = 2.0  # requests per second that a worker serves within the targets


@dataclass
class Cluster:
    """Gives what is ordered after `start_s`, unless it is `broken`."""

    number: int = 2
    start_s: float = 30.0
    limits: CountLimits = LIMITS
    broken: bool = False
    floor_s: float = 0.1
    useless: bool = False  # more workers do not help
    planner: CountPlanner = field(init=False)
    now_s: float = 0.0
    due_s: list[float] = field(default_factory=list)  # of orders
    decisions: list[CountDecision] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.planner = CountPlanner(self.limits, ttft_s=1.0, start_s=self.start_s)

    def outlook(self, number: int, rate: float) -> ModeOutlook:
        attained = min(1.0, (1 if self.useless else number) * OF_ONE / rate)
        return ModeOutlook(attained=attained, ttft_p90_s=0.5, itl_p90_s=0.01, floor_ttft_s=self.floor_s)

    def tick(self, rate: float, unknown: str = "") -> CountDecision:
        self.now_s += self.limits.tick_s
        come = [due_s for due_s in self.due_s if due_s <= self.now_s and not self.broken]
        self.due_s = [due_s for due_s in self.due_s if due_s not in come]
        self.number += len(come)
        num = round(60 * rate)
        demand = Demand(requests_per_s=rate, samples=(Sample(100, 100),), longest_tokens=200) if num else None
        seen = CountSeen(
            now_s=self.now_s,
            num_there=self.number,
            num_coming=len(self.due_s),
            start_s=self.start_s,
            unknown=unknown,
            num_requests=num,
            demand=demand,
        )
        found = self.planner.question(seen)
        if isinstance(found, Demand):
            rate_then = found.requests_per_s
            found = self.planner.decide(seen, self.planner.ask(seen, lambda n: self.outlook(n, rate_then)))
        self.decisions.append(found)
        more = found.num_workers - self.total
        self.due_s += [self.now_s + self.start_s] * max(0, more)
        for _ in range(max(0, -more)):
            if self.due_s:
                self.due_s.pop()
            else:
                self.number -= 1
        return found

    @property
    def total(self) -> int:
        return self.number + len(self.due_s)

    @property
    def acts(self) -> list[CountVerdict]:
        idle = (CountVerdict.HOLD, CountVerdict.UNKNOWN, CountVerdict.INFEASIBLE)
        return [each.verdict for each in self.decisions if each.verdict not in idle]


@given(st.floats(0.5, 15.0))
@settings(max_examples=25, deadline=None)
def test_constant_load_moves_the_number_to_where_it_stays(rate: float) -> None:
    """An hour at any level. Red when the survivor's state after a step is not predicted, so that it swings."""
    cluster = Cluster()
    for _ in range(240):
        cluster.tick(rate)
    settled = len(cluster.acts)
    for _ in range(480):
        cluster.tick(rate)
    assert len(cluster.acts) == settled
    assert len(set(cluster.acts)) <= 1, "in one direction only"
    assert (
        cluster.total == LIMITS.most or cluster.outlook(cluster.total, rate * LIMITS.headroom).attained >= LIMITS.goal
    )


def test_load_that_ends_brings_the_least_number_soon() -> None:
    """Red when an average over no requests keeps seven workers for ever."""
    cluster = Cluster(number=8)
    for _ in range(20):
        cluster.tick(14.0)
    for _ in range(2 * round(LIMITS.down_after_s / LIMITS.tick_s) + 2):
        cluster.tick(0.0)
    assert cluster.total == LIMITS.least


def test_what_is_not_known_takes_no_worker_away() -> None:
    cluster = Cluster(number=4)
    for _ in range(12):
        decision = cluster.tick(0.0, unknown="the reports stopped")
        assert decision.verdict is CountVerdict.UNKNOWN and decision.num_workers == 4
    assert cluster.total == 4


def test_what_is_on_its_way_is_not_ordered_twice() -> None:
    """A start takes six ticks. Red when each tick orders again."""
    cluster = Cluster(number=2)
    for _ in range(30):
        cluster.tick(7.0)
        assert cluster.total <= 4
    assert cluster.acts == [CountVerdict.MORE] and cluster.number == 4


def test_an_order_that_does_not_come_is_given_up_and_the_budget_holds() -> None:
    """Pods that stay pending. Red when it waits for ever, or has more than it may at any instant."""
    cluster = Cluster(number=2, broken=True)
    for _ in range(60):
        cluster.tick(30.0)
        assert cluster.total <= LIMITS.most
    assert CountVerdict.GIVE_UP in cluster.acts
    given_up = next(each for each in cluster.decisions if each.verdict is CountVerdict.GIVE_UP)
    assert given_up.num_workers == 2 and "did not come" in given_up.reason


def test_nothing_is_ordered_that_comes_after_what_a_forecast_reaches() -> None:
    """A model that takes two hours to load. Red when a burst orders workers that come when it is over."""
    cluster = Cluster(start_s=7200.0)
    decision = cluster.tick(12.0)
    assert decision.verdict is CountVerdict.HOLD and "takes 7200 s to start" in decision.reason and not cluster.acts


def test_what_no_number_cures_is_said_and_not_ordered() -> None:
    """One prompt alone takes longer than the target; and a load that more workers do not serve better. Red when it
    orders one more at every tick."""
    alone = Cluster(floor_s=1.4)
    for _ in range(50):
        decision = alone.tick(9.0)
    assert decision.verdict is CountVerdict.INFEASIBLE and "1.40 s" in decision.reason and not alone.acts
    useless = Cluster(useless=True)
    for _ in range(50):
        decision = useless.tick(9.0)
    assert "more would not do better" in decision.reason and not useless.acts


def test_demand_rules_and_not_what_young_workers_made_of_it() -> None:
    """The number follows the load up, without a detour. Red when a cold worker's slow steps order more."""
    cluster, seen = Cluster(number=1), []
    for tick in range(200):
        cluster.tick(1.0 + tick * 0.05)
        seen.append(cluster.total)
    assert seen == sorted(seen) and seen[-1] <= 8


def test_a_ramp_is_met_when_it_arrives() -> None:
    """Red when start time is ignored: each order would come when its load has been there for half a minute."""
    cluster, late = Cluster(number=2), 0
    for tick in range(120):
        rate = 2.0 + tick * 0.05
        cluster.tick(rate)
        late += cluster.number * OF_ONE < rate
    assert late <= 2


@pytest.mark.parametrize("least", [1, 2])
def test_the_least_number_is_the_operators(least: int) -> None:
    cluster = Cluster(number=4, limits=CountLimits(least=least, most=8))
    for _ in range(100):
        cluster.tick(0.0)
    assert cluster.total == least


@pytest.mark.parametrize(
    ("of_three", "advice"),
    [
        (0.9, "the cluster gives no more: one more would make it 90%"),
        (0.6, "the cluster gives no more: one more would not do better"),
        (None, "the cluster gives no more"),
    ],
)
def test_at_the_limit_it_says_what_one_more_would_do(of_three: float | None, advice: str) -> None:
    """Red when it is ordered, or when an operator is not told what would help."""
    limits = CountLimits(most=2)
    planner = CountPlanner(limits, ttft_s=1.0, start_s=30.0)
    demand = Demand(requests_per_s=9.0, samples=(Sample(100, 100),), longest_tokens=200)
    seen = CountSeen(now_s=60.0, num_there=2, num_coming=0, start_s=30.0, num_requests=540, demand=demand)
    assert isinstance(planner.question(seen), Demand)
    parts = {1: 0.3, 2: 0.6} | ({} if of_three is None else {3: of_three})
    outlooks = {n: ModeOutlook(attained=part, ttft_p90_s=0.5, itl_p90_s=0.01) for n, part in parts.items()}
    decision = planner.decide(seen, outlooks)
    assert (decision.verdict, decision.num_workers) == (CountVerdict.HOLD, 2)
    assert decision.reason.endswith(advice)


def test_there_is_none_only_if_that_was_asked_for_and_who_comes_then_is_told_how_long_it_takes() -> None:
    """Red when a least number of 0 is read as 1 or the other way round, when a few requests are left without a worker,
    or when nothing is known without workers and so none is ordered for ever."""
    cluster = Cluster(number=2, limits=CountLimits(least=0, most=4))
    for _ in range(40):
        cluster.tick(0.2)
    assert cluster.total == 1, "some still come"
    for _ in range(40):
        cluster.tick(0.0)
    assert cluster.total == 0 and cluster.decisions[-1].verdict is CountVerdict.HOLD
    assert next(each for each in cluster.decisions if each.num_workers == 0).reason.endswith("; 0 is the least")
    waits = CountSeen(
        now_s=500.0,
        num_there=0,
        num_coming=0,
        start_s=30.0,
        unknown="no worker is ready",
        num_requests=3,
        num_waiting=3,
    )
    found = cluster.planner.question(waits)
    assert isinstance(found, CountDecision) and (found.verdict, found.num_workers) == (CountVerdict.MORE, 1)
    assert found.reason == "3 requests wait for a worker, which takes 30 s to start"
    coming = cluster.planner.question(replace(waits, num_coming=1))
    assert isinstance(coming, CountDecision) and coming.verdict is CountVerdict.UNKNOWN, "it is not ordered twice"


@pytest.mark.parametrize(("least", "most"), [(-1, 2), (3, 2), (0, 0)])
def test_numbers_that_cannot_be_are_refused(least: int, most: int) -> None:
    with pytest.raises(ValueError, match=f"{least} to {most} workers: no number keeps that"):
        CountLimits(least=least, most=most)


@pytest.mark.parametrize("rate", [0.2, 1.5, 3.0, 5.0, 7.0])
def test_where_one_is_to_be_spare_a_death_leaves_the_targets_kept(rate: float) -> None:
    """Red when the number is the fewest for the load, so that each death breaks the targets for a start's time."""
    limits = CountLimits(most=8, spare=1)
    cluster = Cluster(number=1, limits=limits)
    for _ in range(100):
        cluster.tick(rate)
    assert cluster.number >= 2 and cluster.outlook(cluster.number - 1, rate).attained >= limits.kept
    assert cluster.outlook(max(1, cluster.number - 2), rate * limits.headroom).attained < limits.goal or rate < 2.0
    assert set(cluster.acts) == {CountVerdict.MORE}


def test_what_a_burst_ordered_is_given_back_at_once() -> None:
    """A minute after the last tick of it, not one worker a minute. Red when each further one waits for itself."""
    cluster = Cluster(number=2, start_s=20.0)
    for rate in (*[3.0] * 10, *[14.0] * 20):
        cluster.tick(rate)
    assert cluster.number == LIMITS.most
    for _ in range(round(LIMITS.down_after_s / LIMITS.tick_s) + 2):
        cluster.tick(3.0)
    assert cluster.acts[-1] is CountVerdict.FEWER and cluster.acts.count(CountVerdict.FEWER) == 1
    assert cluster.total == 2


def test_what_is_given_back_was_needed_at_no_time_of_the_last_minute() -> None:
    cluster = Cluster(number=8)
    for tick in range(60):
        cluster.tick(9.0 if tick % 10 == 0 else 2.0)  # every 50 s more
        assert cluster.total >= 5
    assert cluster.total <= 6


def test_less_that_is_only_just_enough_is_not_given_back_and_ordered_again() -> None:
    """Three workers are just enough, now and then just not. Red when the same number is what orders and gives back."""
    cluster = Cluster(number=4)
    for tick in range(240):
        cluster.tick((5.4, 5.5)[tick // 30 % 2])
    assert len(cluster.acts) <= 1


@pytest.mark.parametrize("spare", [-1, 4])
def test_spare_workers_are_not_all(spare: int) -> None:
    with pytest.raises(ValueError, match=f"{spare} of at most 4 workers are to be spare"):
        CountLimits(most=4, spare=spare)


@pytest.mark.parametrize(("present", "asked"), [(2, [2, 1, 3, 4]), (4, [4, 3, 2]), (7, [7, 6, 5, 4, 3, 2])])
def test_no_more_numbers_are_asked_about_than_a_decision_needs(present: int, asked: list[int]) -> None:
    """Each is a simulated world. 4 of them are needed so that 3 keep the targets; down to the first that is too few."""
    limits, found = CountLimits(most=8, spare=1), list[int]()

    def answer(number: int) -> ModeOutlook:
        found.append(number)
        return ModeOutlook(attained=min(1.0, number / 3), ttft_p90_s=0.5, itl_p90_s=0.01)

    seen = CountSeen(now_s=60.0, num_there=present, num_coming=0, start_s=30.0)
    CountPlanner(limits, ttft_s=1.0, start_s=30.0).ask(seen, answer)
    assert found == asked


def counted(answers_s: Mapping[int, tuple[float, float]], present: int) -> CountDecision:
    """In a burst that is far beyond all of them. `answers_s`: by number, how long answers take, and which part is
    answered at all."""
    limits = CountLimits(most=max(answers_s))
    planner = CountPlanner(limits, ttft_s=1.0, start_s=30.0)
    seen = CountSeen(now_s=60.0, num_there=present, num_coming=0, start_s=30.0)

    def answer(number: int) -> ModeOutlook:
        answer_s, answered = answers_s[number]
        return ModeOutlook(attained=0.0, ttft_p90_s=9.0, itl_p90_s=0.01, answer_s=answer_s, answered=answered)

    return planner.decide(seen, planner.ask(seen, answer))


def test_where_no_number_meets_a_target_the_sooner_answers_decide() -> None:
    """Red when none is ordered in a burst that is beyond all of them, for all are alike in what they promise."""
    found = counted({2: (60.0, 1.0), 3: (38.0, 1.0), 4: (28.0, 1.0)}, 2)
    assert found.verdict is CountVerdict.MORE and found.num_workers == 4
    assert "4 workers are to meet the targets for 0% and to answer in 28 s, 2 " in found.reason
    found = counted({2: (60.0, 0.3), 3: (60.0, 0.5), 4: (60.0, 0.7)}, 2)
    assert found.num_workers == 4, "as soon, and more of them"
    found = counted({2: (60.0, 1.0), 3: (38.0, 1.0), 4: (37.0, 1.0)}, 2)
    assert found.num_workers == 3, "a fourth one does hardly better"
    found = counted({2: (60.0, 1.0), 3: (59.0, 1.0), 4: (58.0, 1.0)}, 2)
    assert found.verdict is CountVerdict.HOLD and "more would not do better" in found.reason
