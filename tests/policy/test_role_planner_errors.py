"""The planner does no harm by a simulator that is wrong: a gain counts above the error of late predictions only."""

from __future__ import annotations

from math import sqrt

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relevo.core.ids import WorkerId
from relevo.policy.scaling.demand import Demand, Sample
from relevo.policy.scaling.mode_outlook import ModeOutlook
from relevo.policy.scaling.modes import Mode, modes_of
from relevo.policy.scaling.past_errors import PastErrors
from relevo.policy.scaling.planner_limits import PlannerLimits
from relevo.policy.scaling.role_planner import PlanDecision, PlanVerdict, RolePlanner, Seen

MODES = tuple(
    mode for mode in modes_of({"box": [WorkerId("prefill-0"), WorkerId("decode-0")]}) if mode.name != "unified"
)
SPLIT = next(mode for mode in MODES if mode.name == "1p1d")
LIMITS = PlannerLimits()
DEMAND = Demand(requests_per_s=5.0, samples=(Sample(100, 100),), longest_tokens=200)


class Run:
    """Steady traffic, tick by tick: the simulator's word of each mode, and what the present one comes to."""

    def __init__(self, mode: Mode = SPLIT) -> None:
        self.planner = RolePlanner(LIMITS, ttft_s=1.0, itl_s=0.05)
        self.mode, self.now_s = mode, 60.0

    def tick(self, said: dict[str, float], attained: float | None, num_judged: int = 300) -> PlanDecision:
        self.now_s += LIMITS.tick_s
        seen = Seen(
            now_s=self.now_s,
            mode=self.mode,
            num_requests=300,
            demand=DEMAND,
            attained=attained,
            num_judged=num_judged if attained is not None else 0,
            since_s=self.now_s - 60.0,
        )
        found = self.planner.question(seen)
        if isinstance(found, Demand):
            outlooks = {
                mode: ModeOutlook(attained=said.get(mode.name, 0.5), ttft_p90_s=0.1, itl_p90_s=0.02) for mode in MODES
            }
            found = self.planner.decide(seen, outlooks)
        self.mode = found.mode
        return found


def ticks(run: Run, num: int, said: dict[str, float], attained: float | None) -> list[PlanDecision]:
    return [run.tick(said, attained) for _ in range(num)]


def test_a_gain_within_the_error_of_predictions_changes_nothing() -> None:
    """As on the day on which it lost: 98 % were said of the present mode, a death made 70 % of them, and another mode
    was to gain 12 points. Red when the simulator's word counts as if it had never been wrong."""
    run = Run()
    found = ticks(run, 20, {"1p1d": 0.98 - 0.12, "2u": 0.98}, attained=0.70)
    assert {each.verdict for each in found} == {PlanVerdict.HOLD}
    assert "predictions were 13% off of late" in found[-1].reason
    sound = Run()
    assert PlanVerdict.CHANGE in {each.verdict for each in ticks(sound, 3, {"1p1d": 0.70, "2u": 0.82}, attained=0.70)}


def test_a_gain_beyond_the_error_is_acted_on() -> None:
    run = Run()
    found = ticks(run, 4, {"1p1d": 0.60, "2u": 0.98}, attained=0.70)
    change = next(each for each in found if each.verdict is PlanVerdict.CHANGE)
    assert change.mode.name == "2u"


def test_what_chance_makes_of_few_requests_is_no_error() -> None:
    """Forty requests a minute, of which six or seven of ten meet the targets by turns, as is said of both. Red when
    that keeps a planner from a gain of eight points that many simulated requests tell."""
    run = Run()
    found = [run.tick({"1p1d": 0.65, "2u": 0.73}, 0.60 + 0.10 * (tick % 2), num_judged=40) for tick in range(8)]
    assert run.planner.past.error < 0.02
    assert [each.mode.name for each in found if each.verdict is PlanVerdict.CHANGE] == ["2u"]


def test_nothing_is_changed_before_a_prediction_was_compared() -> None:
    """Red when the first words of a simulator that has proven nothing change roles."""
    run = Run()
    found = ticks(run, 10, {"1p1d": 0.5, "2u": 1.0}, attained=None)
    assert {each.verdict for each in found} == {PlanVerdict.HOLD}
    assert found[-1].reason.endswith("0 predictions have been compared with what came of them, 2 are needed")


def test_an_error_is_the_last_one_or_the_mean_and_is_forgotten_in_time() -> None:
    past = PastErrors()
    assert (past.error, past.num_compared) == (0.0, 0)
    past.add(0.9, 0.5)
    past.add(0.5, 0.6)
    assert past.error == pytest.approx(0.25)
    past.add(0.5, 0.6, 0.15)
    assert past.error == pytest.approx(0.5 / 3), "the last one is chance"
    past.add(1.0, 0.1)
    assert past.error == pytest.approx(0.9)
    for _ in range(40):
        past.add(0.8, 0.8)
    assert past.error == 0.0


PART = st.floats(0.0, 1.0)


def at_stake(attained: float | None) -> float:
    """What a change that was foretold wrongly can lose, where it is seen that much is lost already."""
    return attained if attained is not None and attained <= 1.0 - LIMITS.wide else 1.0


def is_broken(promised: float, attained: float | None) -> bool:
    """So far from what is promised of the present mode that it is left in the end, whatever another one promises."""
    return attained is not None and promised - attained >= 2.0 * LIMITS.wide


@given(
    steps=st.lists(
        st.tuples(st.fixed_dictionaries({mode.name: PART for mode in MODES}), st.none() | PART), min_size=1, max_size=40
    )
)
@settings(max_examples=150, deadline=None)
def test_no_change_ever_promises_less_than_predictions_were_off(
    steps: list[tuple[dict[str, float], float | None]],
) -> None:
    run = Run()
    for said, attained in steps:
        before = run.mode
        found = run.tick(said, attained)
        if found.verdict is PlanVerdict.CHANGE:
            if is_broken(said[before.name], attained):
                continue
            gain = said[found.mode.name] - said[before.name]
            assert attained is not None or run.planner.past.num_compared >= LIMITS.min_compared
            assert gain >= LIMITS.gain + min(run.planner.past.error, at_stake(attained))


@given(said=st.fixed_dictionaries({mode.name: PART for mode in MODES}), off=st.floats(0.02, 1.0))
@settings(max_examples=100, deadline=None)
def test_a_simulator_that_is_off_by_so_much_moves_nothing_for_less(said: dict[str, float], off: float) -> None:
    """Under steady traffic, however often it repeats itself."""
    run = Run()
    attained = said["1p1d"] - off if said["1p1d"] >= off else min(1.0, said["1p1d"] + off)
    error = max(0.0, abs(said["1p1d"] - attained) - sqrt(attained * (1.0 - attained) / 300))
    gain = max(said.values()) - said["1p1d"]
    if gain < min(error, at_stake(attained)) and not is_broken(said["1p1d"], attained):
        assert all(each.verdict is not PlanVerdict.CHANGE for each in ticks(run, 12, said, attained))
