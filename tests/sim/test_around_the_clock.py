"""Twenty-four hours on a cluster: the numbers of a rule, and what is said of several."""

from __future__ import annotations

from dataclasses import replace

import pytest
from typer.testing import CliRunner

from relevo.cli.bench import app
from relevo.sim.day.around_the_clock import CORES, AroundTheClock
from relevo.sim.day.clock_report import ClockReport, clock_sentence, clock_table, report_clock
from relevo.sim.day.traffic import drawn_kinds


@pytest.fixture(scope="module")
def report() -> ClockReport:
    day = AroundTheClock(kinds=drawn_kinds(0), hour_s=1.5)
    return report_clock(day.run("2u"), day.hour_s, day.slo)


def test_a_day_of_two_workers_is_paid_for_as_two_whole_days(report: ClockReport) -> None:
    """Red when shortened hours are counted as they are, or a fixed rule is paid for by use."""
    assert report.core_hours == pytest.approx(2 * 24 * CORES, rel=0.01)
    assert report.num_requests > 50 and 0.0 < report.attained <= 1.0
    assert report.in_burst is not None and report.num_changes == 0 and report.most_workers is None


def test_the_sentence_takes_the_cheapest_fixed_rule_that_keeps_the_goal(report: ClockReport) -> None:
    def told(**attained: float) -> str:
        rules = {"3u": 500.0, "6u": 1000.0, "planner": 400.0, "reactive": 450.0}
        return clock_sentence(
            [replace(report, rule=name, attained=part, core_hours=rules[name]) for name, part in attained.items()]
        )

    assert told(**{"3u": 0.96, "6u": 0.99, "planner": 0.95, "reactive": 0.9}) == (
        "the planner: 95.0% for 400 core-hours; the reactive scaler: 90.0% for 450 core-hours; "
        "the cheapest fixed one that keeps 95%, 3u: 96.0% for 500 core-hours"
    )
    assert "the best fixed one (none keeps 95%), 6u" in told(**{"3u": 0.6, "6u": 0.9, "planner": 1.0, "reactive": 0.9})
    assert told(**{"3u": 0.96, "planner": 0.95}) == "Not every rule was run."
    assert clock_table([report]).row_count == 1


def test_the_usual_rules_are_rules() -> None:
    day = AroundTheClock(kinds=drawn_kinds(0))
    assert set(day.usual_rules) <= set(day.rules) and len(set(day.usual_rules)) == 12


def test_a_rule_that_is_none_is_one_sentence() -> None:
    told = CliRunner().invoke(app, ["around-the-clock", "--rules", "luck"])
    assert told.exit_code == 2 and "'luck' is not known" in told.output
