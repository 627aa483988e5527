"""A gain that chance makes of few simulated requests changes nothing: one more of a hundred is no reason."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_role_planner_errors import DEMAND, LIMITS, MODES, SPLIT

from relevo.policy.scaling.demand import Demand
from relevo.policy.scaling.mode_outlook import ModeOutlook
from relevo.policy.scaling.role_planner import PlanDecision, PlanVerdict, RolePlanner, Seen

PART = st.floats(0.0, 1.0)


def outlook(attained: float, number: int, surge: float | None = None) -> ModeOutlook:
    return ModeOutlook(
        attained=attained, ttft_p90_s=0.1, itl_p90_s=0.02, num_judged=number, surge_attained=surge, num_surged=number
    )


def ticks(split: float, other: float, number: int) -> list[PlanDecision]:
    """Predictions that have been right, each of so many requests."""
    planner, found = RolePlanner(LIMITS, 1.0, 0.05), list[PlanDecision]()
    for tick in range(6):
        now_s = 100.0 + LIMITS.tick_s * tick
        seen = Seen(
            now_s=now_s, mode=SPLIT, num_requests=300, demand=DEMAND, attained=split, num_judged=300, since_s=now_s - 60
        )
        assert isinstance(planner.question(seen), Demand)
        said = {mode: outlook(split if mode == SPLIT else other, number) for mode in MODES}
        found.append(planner.decide(seen, said))
        if found[-1].verdict is PlanVerdict.CHANGE:
            break
    return found


def test_a_few_requests_of_a_hundred_are_chance_and_of_ten_thousand_a_gain() -> None:
    """Red when a gain counts the same however few requests it is told from: all ticks ask the same simulator."""
    few, many = ticks(0.90, 0.94, 100), ticks(0.90, 0.94, 10_000)
    assert {each.verdict for each in few} == {PlanVerdict.HOLD}
    assert "chance alone makes 5% of so few simulated requests" in few[-1].reason
    assert many[-1].verdict is PlanVerdict.CHANGE
    assert ticks(0.60, 0.95, 100)[-1].verdict is PlanVerdict.CHANGE, "a clear gain is one in few requests, too"


def test_noise_is_two_standard_errors_of_what_differs() -> None:
    one, other = outlook(0.5, 100), outlook(0.5, 100)
    assert one.noise(other) == pytest.approx(0.1)
    assert outlook(0.5, 400).noise(outlook(0.5, 400)) == pytest.approx(0.05)
    assert outlook(1.0, 100).noise(outlook(1.0, 100)) == 0.0, "where all meet the targets nothing differs"
    assert outlook(0.5, 0).noise(outlook(0.5, 0)) == 0.0, "exact"
    surged = outlook(1.0, 100, 0.5)
    assert surged.noise(surged) == pytest.approx(0.3 * 0.1)


@given(PART, PART, st.integers(1, 10**6), st.none() | PART)
def test_noise_is_the_same_both_ways_and_falls_with_more_requests(
    one: float, other: float, number: int, surge: float | None
) -> None:
    first, second = outlook(one, number, surge), outlook(other, number, surge)
    assert 0.0 <= first.noise(second) == pytest.approx(second.noise(first))
    more = outlook(one, 4 * number, surge).noise(outlook(other, 4 * number, surge))
    assert more == pytest.approx(first.noise(second) / 2)
