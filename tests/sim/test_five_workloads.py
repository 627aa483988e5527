"""The five workloads in sequence, simulated on two cores: the planner against modes that never change, as live."""

from __future__ import annotations

from itertools import pairwise

import pytest

from relevo.sim.day.machine import TWO_CORES
from relevo.sim.day.report import DayReport, report_day
from relevo.sim.day.two_workers import PLANNER
from relevo.sim.day.workloads import FiveWorkloads
from relevo.workload.open_loop import Scale
from relevo.workload.phases import FIVE, INPUT_HEAVY, OUTPUT_HEAVY

FIXED = ("2u", "1p1d", "1p1h", "hybrid")  # unified is far behind them


@pytest.fixture(scope="module")
def reports() -> dict[str, DayReport]:
    five = FiveWorkloads(machine=TWO_CORES, scale=TWO_CORES.scale, phase_s=40.0, seed=2, num_simulated=60)
    return {rule: report_day(five.run(rule), five.hours, five.slo) for rule in (*FIXED, PLANNER)}


def test_every_rule_meets_the_same_requests_of_every_kind(reports: dict[str, DayReport]) -> None:
    assert len({report.num_requests for report in reports.values()}) == 1
    for report in reports.values():
        assert list(report.by_hour) == [kind.name for kind in FIVE]
        assert None not in report.by_hour.values()


def test_the_planner_keeps_up_with_the_best_mode(reports: dict[str, DayReport]) -> None:
    """Red when a decision is wrong or late enough to cost a twentieth of the requests."""
    best = max(reports[rule].attained for rule in FIXED)
    assert reports[PLANNER].attained >= 0.95 * best, {rule: each.attained for rule, each in reports.items()}


def test_it_changes_at_most_twice_and_never_back(reports: dict[str, DayReport]) -> None:
    """Red when it swings, or takes each kind of traffic for a reason."""
    assert reports[PLANNER].num_changes <= 2 and reports[PLANNER].num_returns == 0, reports[PLANNER].changes


def test_a_kind_comes_at_a_share_of_what_is_sustained() -> None:
    """Red when the rate of one kind is taken for another's."""
    five = FiveWorkloads(scale=Scale(0.25, 0.25), seed=7)
    rates = [five.rate_of(kind) for kind in (INPUT_HEAVY, OUTPUT_HEAVY)]
    assert rates == [five.rates["input-heavy"], five.rates["output-heavy"]] and rates[0] != pytest.approx(rates[1])
    again = FiveWorkloads(scale=Scale(0.25, 0.25), seed=7)
    assert again.rate_of(INPUT_HEAVY) == rates[0]
    assert all(before < after for before, after in pairwise(sorted({0.0, *rates})))
