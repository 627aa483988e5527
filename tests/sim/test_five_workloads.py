"""The five workloads in sequence, simulated: the planner is held against every mode that never changes, as live."""

from __future__ import annotations

from itertools import pairwise

import pytest

from relevo.sim.day.report import DayReport, report_day
from relevo.sim.day.workloads import FiveWorkloads
from relevo.workload.open_loop import Scale
from relevo.workload.phases import INPUT_HEAVY, OUTPUT_HEAVY

RULES = ("2u", "1p1d", "planner")


@pytest.fixture(scope="module")
def reports() -> dict[str, DayReport]:
    five = FiveWorkloads(
        kinds=(INPUT_HEAVY, OUTPUT_HEAVY),
        phase_s=50.0,
        load=0.4,
        scale=Scale(2.0, 0.3),
        seed=7,
        num_simulated=30,
    )
    return {rule: report_day(five.run(rule), five.hours, five.slo) for rule in RULES}


def test_every_rule_meets_the_same_requests_of_every_kind(reports: dict[str, DayReport]) -> None:
    assert len({report.num_requests for report in reports.values()}) == 1
    for report in reports.values():
        assert list(report.by_hour) == ["input-heavy", "output-heavy"]
        assert None not in report.by_hour.values()


def test_the_planner_costs_nothing_and_does_not_swing(reports: dict[str, DayReport]) -> None:
    """Red when it is worse than the mode that it begins in, or than the best that never changes by more than noise, or
    goes back and forth."""
    planner = reports["planner"]
    fixed = {rule: report.attained for rule, report in reports.items() if rule != "planner"}
    assert planner.attained >= fixed["1p1d"] - 0.01, (planner.attained, fixed)
    assert planner.attained >= max(fixed.values()) - 0.03, (planner.attained, fixed)
    assert planner.num_returns == 0 and planner.num_changes <= len(planner.by_hour)


def test_a_kind_comes_at_a_share_of_what_is_sustained() -> None:
    """Red when the rate of one kind is taken for another's."""
    five = FiveWorkloads(scale=Scale(0.25, 0.25), seed=7)
    rates = [five.rate_of(kind) for kind in (INPUT_HEAVY, OUTPUT_HEAVY)]
    assert rates == [five.rates["input-heavy"], five.rates["output-heavy"]] and rates[0] != pytest.approx(rates[1])
    again = FiveWorkloads(scale=Scale(0.25, 0.25), seed=7)
    assert again.rate_of(INPUT_HEAVY) == rates[0]
    assert all(before < after for before, after in pairwise(sorted({0.0, *rates})))
