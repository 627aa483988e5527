"""The planner on scripted observations: what it does, what it leaves, and that it never swings.

Outlooks come from a rule that a test can compute by hand: a mode attains as much of a load as its capacity allows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relevo.core.ids import WorkerId
from relevo.core.role import DECODE, PREFILL, STANDBY, UNIFIED
from relevo.policy.scaling.demand import Demand, Sample
from relevo.policy.scaling.forecast import Chosen, Constant, Kalman, Seasonal
from relevo.policy.scaling.mode_outlook import ModeOutlook
from relevo.policy.scaling.modes import SPILLING, Mode, mode_named, modes_of
from relevo.policy.scaling.planner_limits import PlannerLimits
from relevo.policy.scaling.role_planner import PlanDecision, PlanVerdict, RolePlanner, Seen

ALL_MODES = modes_of({"box": [WorkerId("prefill-0"), WorkerId("decode-0")]})
MODES = tuple(mode for mode in ALL_MODES if mode.name in ("unified", "1p1d", "hybrid"))
UNIFIED_MODE, SPLIT, HYBRID_MODE = MODES
LIMITS = PlannerLimits()


def demand(rate: float, prompt: int = 100, output: int = 100) -> Demand:
    return Demand(requests_per_s=rate, samples=(Sample(prompt, output),), longest_tokens=prompt + output)


Capacity = Callable[[Mode, Demand], float]  # requests per second of which the targets are met


def fixed(**capacities: float) -> Capacity:
    return lambda mode, demand: capacities[mode.name.replace("1p1d", "split")]


@dataclass
class Run:
    """A planner tick by tick; what a mode attains really is the same rule unless a test says otherwise."""

    capacity: Capacity
    truth: Capacity | None = None
    mode: Mode = SPLIT
    planner: RolePlanner = field(default_factory=lambda: RolePlanner(LIMITS, ttft_s=1.0, itl_s=0.05))
    decisions: list[PlanDecision] = field(default_factory=list)
    now_s: float = 0.0

    def tick(self, rate: float, *, unknown: str = "", floor_s: float = 0.1, prompt: int = 100) -> PlanDecision:
        self.now_s += LIMITS.tick_s
        asked, num = demand(rate, prompt), round(rate * 30)
        truth = self.truth or self.capacity
        seen = Seen(
            now_s=self.now_s,
            mode=self.mode,
            unknown=unknown,
            num_requests=num,
            demand=asked if num else None,
            attained=min(1.0, truth(self.mode, asked) / rate) if num else None,
            num_judged=num,
            since_s=self.now_s - 30.0,
        )
        found = self.planner.question(seen)
        if isinstance(found, Demand):
            found = self.planner.decide(seen, {mode: self.outlook(mode, found, floor_s) for mode in MODES})
        self.mode = found.mode
        self.decisions.append(found)
        return found

    def outlook(self, mode: Mode, asked: Demand, floor_s: float) -> ModeOutlook:
        attained = min(1.0, self.capacity(mode, asked) / asked.requests_per_s)
        return ModeOutlook(attained=attained, ttft_p90_s=floor_s / attained, itl_p90_s=0.02, floor_ttft_s=floor_s)

    @property
    def changes(self) -> list[PlanDecision]:
        return [each for each in self.decisions if each.verdict in (PlanVerdict.CHANGE, PlanVerdict.UNDO)]


def test_modes_of_two_workers_and_of_several_machines() -> None:
    assert [mode.name for mode in ALL_MODES] == ["unified", "2u", "1p1d", "1p1h", "hybrid"]
    assert dict(ALL_MODES[1].roles) == dict.fromkeys(dict(SPLIT.roles), UNIFIED)
    assert dict(ALL_MODES[3].roles) == {"prefill-0": PREFILL, "decode-0": SPILLING}
    assert dict(UNIFIED_MODE.roles) == {"prefill-0": STANDBY, "decode-0": UNIFIED}
    assert dict(SPLIT.roles) == {"prefill-0": PREFILL, "decode-0": DECODE}
    machines = {"a": [WorkerId("p"), WorkerId("d")], "b": [WorkerId("e")]}
    assert dict(modes_of(machines)[0].roles) == {"p": STANDBY, "d": UNIFIED, "e": UNIFIED}
    assert [mode.name for mode in modes_of({"a": [WorkerId("u")]})] == ["unified"]
    assert [mode.name for mode in modes_of(machines, abilities_differ=True)] == ["unified"]
    assert modes_of({}) == ()
    assert mode_named(MODES, dict(SPLIT.roles)) is SPLIT
    assert [mode.name for mode in modes_of({"a": [WorkerId("p")], "b": [WorkerId("d")]})][:2] == ["unified", "1p1d"]
    assert mode_named(MODES, dict.fromkeys(dict(SPLIT.roles), UNIFIED)).name == "decode-0=unified prefill-0=unified"


def test_it_changes_for_a_clear_gain_that_lasts_and_says_why() -> None:
    """Red when one tick is enough, or when a gain is not acted on."""
    run = Run(fixed(unified=4.0, split=2.8, hybrid=3.0))
    first, second = run.tick(3.5), run.tick(3.5)
    assert first.verdict is PlanVerdict.HOLD and "once more" in first.reason
    assert second.verdict is PlanVerdict.CHANGE and second.mode is UNIFIED_MODE
    assert "unified is to meet the targets for 100%" in second.reason and "1p1d" in second.reason
    assert second.expected is not None and second.rate_per_s == pytest.approx(3.5)


def test_a_mode_that_is_not_what_is_promised_of_it_is_left_once() -> None:
    """Red when the planner stays where next to no request meets the targets as long as the simulator says that all
    would, leaves at the first look, goes back, or is driven from mode to mode where every promise is broken."""
    promised, real = fixed(unified=3.5, split=2.0, hybrid=2.4), fixed(unified=0.1, split=1.9, hybrid=2.3)
    run = Run(promised, truth=real, mode=UNIFIED_MODE)
    for _ in range(100):
        run.tick(3.5)
    (left,) = run.changes
    assert left.verdict is PlanVerdict.CHANGE and left.mode is HYBRID_MODE
    assert "promised to meet the targets for 100% and does for 3%" in left.reason
    assert run.decisions.index(left) >= LIMITS.cool_down_s / LIMITS.tick_s, "not at the first look"

    nowhere = Run(promised, truth=fixed(unified=0.1, split=0.1, hybrid=0.1), mode=UNIFIED_MODE)
    for _ in range(int(LIMITS.block_s / LIMITS.tick_s) - 2):
        nowhere.tick(3.5)
    assert len(nowhere.changes) <= 2, "away, and perhaps back"


@given(st.floats(0.5, 10.0), st.integers(0, 10**6))
@settings(max_examples=30, deadline=None)
def test_under_constant_load_it_changes_at_most_once(rate: float, seed: int) -> None:
    """An hour at any level, arrivals noisy by a tenth. Red when it goes back and forth."""
    rng, run = Random(seed), Run(fixed(unified=4.0, split=3.0, hybrid=3.9))
    for _ in range(720):
        run.tick(rate * rng.uniform(0.9, 1.1))
    assert len(run.changes) <= 1


def test_what_is_not_known_is_not_acted_on() -> None:
    """A minute without reports at high load: red when missing figures are read as no load, or as any."""
    run = Run(fixed(unified=4.0, split=2.0, hybrid=3.0), mode=UNIFIED_MODE)
    for _ in range(6):
        run.tick(3.8)
    for _ in range(12):
        decision = run.tick(0.0, unknown="decode-0 has not reported for 12 s")
        assert decision.verdict is PlanVerdict.UNKNOWN and "decode-0 has not reported" in decision.reason
    assert run.planner.num_unknown_ticks == 12 and not run.changes


def test_no_requests_are_a_number_and_teach_no_lengths() -> None:
    """Red when an idle hour divides by nothing, or is taken for requests of no length."""
    run = Run(fixed(unified=4.0, split=2.0, hybrid=3.0), mode=UNIFIED_MODE)
    for _ in range(100):
        decision = run.tick(0.0)
        assert decision.verdict is PlanVerdict.HOLD and "0 requests" in decision.reason
    assert decision.rate_per_s == 0.0 and not run.changes


def test_it_never_acts_on_fewer_requests_than_it_says_it_needs() -> None:
    """Ten where many of them miss the targets, twenty otherwise."""
    run = Run(fixed(unified=4.0, split=0.1, hybrid=0.1))
    for _ in range(20):
        decision = run.tick(0.3)  # 9 in the window
        assert "9 requests in the window, 10 are needed" in decision.reason
    fine = Run(fixed(unified=4.0, split=0.5, hybrid=0.5))
    for _ in range(20):
        decision = fine.tick(0.6)
        assert "18 requests in the window, 20 are needed" in decision.reason
    assert not fine.changes
    assert not run.changes


def test_a_change_by_hand_is_adopted_and_holds() -> None:
    """Red when it fights an operator over a role."""
    run = Run(fixed(unified=4.0, split=2.0, hybrid=3.0), mode=UNIFIED_MODE)
    run.tick(3.5)
    run.mode = HYBRID_MODE
    adopted = run.tick(3.5)
    assert adopted.verdict is PlanVerdict.ADOPT and adopted.mode is HYBRID_MODE and "by hand" in adopted.reason
    for _ in range(int(LIMITS.hand_hold_s / LIMITS.tick_s) - 1):
        assert run.tick(3.5).verdict is PlanVerdict.HOLD
    run.tick(3.5)
    run.tick(3.5)
    assert run.mode is UNIFIED_MODE


def test_a_change_that_made_it_worse_is_taken_back_and_not_tried_again_soon() -> None:
    """The simulator is wrong about unified. Red when the planner believes it against what it sees."""
    run = Run(fixed(unified=4.0, split=2.0, hybrid=1.0), truth=fixed(unified=1.0, split=2.0, hybrid=1.0))
    for _ in range(int(LIMITS.block_s / LIMITS.tick_s)):
        run.tick(3.0)
    change, undo = run.changes
    assert change.mode is UNIFIED_MODE
    assert undo.verdict is PlanVerdict.UNDO and undo.mode is SPLIT
    assert "33% meet the targets, 67% did before, 100% were expected" in undo.reason


def test_what_came_of_a_change_is_told_once() -> None:
    """Red when a change that stays is never spoken of again, or at every tick."""
    run = Run(fixed(unified=4.0, split=2.0, hybrid=1.0), truth=fixed(unified=2.94, split=2.0, hybrid=1.0))
    for _ in range(60):
        run.tick(3.0)
    (kept,) = [each for each in run.decisions if each.verdict is PlanVerdict.KEEP]
    assert kept.mode is UNIFIED_MODE and run.mode is UNIFIED_MODE
    assert kept.reason == ("the change to unified came to 98% that meet the targets, of 100% expected; 67% did before")


def test_more_load_after_a_change_is_not_the_changes_fault() -> None:
    run = Run(fixed(unified=4.0, split=2.0, hybrid=1.0))
    for rate in (3.0, 3.0, *[12.0] * 40):
        run.tick(rate)
    assert [each.mode for each in run.changes] == [UNIFIED_MODE]
    (kept,) = [each for each in run.decisions if each.verdict is PlanVerdict.KEEP]
    assert "with 12.0 instead of 3.0 requests/s it stays" in kept.reason


def test_what_no_mode_can_cure_is_said_and_not_acted_on() -> None:
    """One prompt alone takes longer than the target. Red when it looks for a mode again and again."""
    run = Run(lambda mode, demand: 0.2)
    for _ in range(50):
        decision = run.tick(3.0, floor_s=1.7)
    assert decision.verdict is PlanVerdict.INFEASIBLE and "1.70 s" in decision.reason and not run.changes


def test_other_traffic_gets_another_mode() -> None:
    """Input-heavy and output-heavy hours in turn. Red when it stays with what was once right, or swings inside one."""

    def capacity(mode: Mode, asked: Demand) -> float:
        heavy = asked.mean_prompt_tokens > 500
        return {"unified": 4.0 if heavy else 2.0, "1p1d": 2.0 if heavy else 4.0, "hybrid": 2.5}[mode.name]

    run = Run(capacity)
    seen = []
    for hour in range(6):
        for _ in range(120):
            run.tick(3.5, prompt=1000 if hour % 2 else 100)
        seen.append(run.mode)
    assert seen == [SPLIT, UNIFIED_MODE] * 3 and len(run.changes) == 5


def test_demand_is_not_taken_for_less_than_it_is() -> None:
    """A forecast that falls is believed when the load has fallen. Red when a trend lowers what is planned for."""
    planner = RolePlanner(LIMITS, 1.0, 0.05)
    for tick, rate in enumerate([10.0, 9.0, 8.0, 7.0, 6.0, 5.0] * 5):
        seen = Seen(now_s=5.0 * tick, mode=SPLIT, num_requests=100, demand=demand(rate), since_s=0.0)
        asked = planner.question(seen)
        assert isinstance(asked, Demand) and asked.requests_per_s >= rate - 1e-9


def test_the_forecast_that_errs_least_is_believed() -> None:
    ramp = Chosen((Constant(), Kalman(), Seasonal(10)), 3)
    for tick in range(60):
        ramp.add(1.0 + 0.5 * tick)
    assert ramp.name == "kalman" and ramp.rate_per_s() == pytest.approx(1.0 + 0.5 * 62, rel=0.05)
    season = Chosen((Constant(), Kalman(), Seasonal(10)), 3)
    for tick in range(80):
        season.add(10.0 if tick % 10 < 5 else 1.0)
    assert season.name == "seasonal"
    assert season.rate_per_s() == pytest.approx(10.0 if 82 % 10 < 5 else 1.0)


def test_a_season_says_nothing_before_it_was_seen_twice() -> None:
    seasonal = Seasonal(10)
    for tick in range(19):
        seasonal.add(float(tick))
    assert seasonal.ahead(1) is None
    seasonal.add(19.0)
    assert seasonal.ahead(1) is not None


@given(st.lists(st.floats(0.0, 1e6), min_size=1, max_size=100))
def test_no_forecast_is_negative_or_no_number(rates: list[float]) -> None:
    chosen = Chosen((Constant(), Kalman(), Seasonal(7)), 4)
    for rate in rates:
        chosen.add(rate)
        assert 0.0 <= chosen.rate_per_s() < float("inf")


def test_a_burst_of_ten_times_is_planned_for_at_once() -> None:
    run = Run(fixed(unified=40.0, split=2.0, hybrid=3.0))
    for _ in range(20):
        run.tick(1.0)
    run.tick(10.0)
    run.tick(10.0)
    assert run.mode is UNIFIED_MODE


def seen_outlooks(decision: PlanDecision) -> Mapping[str, ModeOutlook]:
    return decision.outlooks


def test_a_decision_tells_every_mode_that_it_looked_at() -> None:
    run = Run(fixed(unified=4.0, split=2.0, hybrid=3.0))
    assert set(seen_outlooks(run.tick(3.5))) == {"unified", "1p1d", "hybrid"}
    assert replace(run.decisions[0].outlooks["1p1d"], attained=0.0).better_by(run.decisions[0].outlooks["unified"]) < 0


def test_of_modes_that_are_about_as_good_one_with_more_workers_is_taken() -> None:
    """Red when a hair's breadth puts everything on one worker, whose death then takes everything with it."""
    run = Run(fixed(unified=3.52, split=2.0, hybrid=3.5))
    run.tick(3.52)
    run.tick(3.52)
    assert run.mode is HYBRID_MODE
