"""A day under each rule: the same requests for all of them, and numbers that are what clients saw."""

from __future__ import annotations

from pathlib import Path

import pytest
from real_traces import trace
from typer.testing import CliRunner

from relevo.cli.bench import app
from relevo.sim.day.report import day_sentence, report_day
from relevo.sim.day.rules import Change
from relevo.sim.day.run import Day
from relevo.sim.day.traffic import Hour, drawn_kinds, trace_kinds, workload_of
from relevo.sim.day.two_workers import TARGETS, DayRun

SHORT = (Hour("code", 40.0, 1.8, 0.0), Hour("talk", 8.0, 0.0, 2.0))


def test_an_hour_has_its_kinds_of_requests_at_its_rates() -> None:
    """Red when hours run into each other, or a rate of zero brings requests."""
    requests = workload_of((Hour("a", 400.0, 2.0, 0.0), Hour("b", 400.0, 0.0, 3.0)), drawn_kinds(0), 0).requests
    early = [each for each in requests if (each.arrived_at_s or 0.0) < 400.0]
    late = requests[len(early) :]
    assert 720 < len(early) < 880 and 1080 < len(late) < 1320
    means = [sum(each.num_output_tokens for each in part) / len(part) for part in (early, late)]
    assert 15 < means[0] < 45 and 150 < means[1] < 270
    assert max(each.arrived_at_s or 0.0 for each in requests) < 800.0


def test_traces_give_the_lengths_where_they_are_there() -> None:
    kinds = trace_kinds(
        trace("AzureLLMInferenceTrace_code_2023.csv"), trace("AzureLLMInferenceTrace_conv_2023.csv"), limit=50
    )
    assert kinds.code[:2] == [(4808, 10), (3180, 8)] and kinds.conversation[0] == (374, 44)


def test_every_rule_meets_the_same_requests_and_the_planner_changes_for_them() -> None:
    """Red when an arm is spared something, or the planner is not the one that acts."""
    day = Day(kinds=drawn_kinds(0), hours=SHORT, death_at_s=None, num_simulated=12)
    assert day.rules == ("unified", "2u", "1p1d", "1p1h", "hybrid", "threshold", "planner")
    runs = {rule: day.run(rule) for rule in ("unified", "planner")}
    reports = [report_day(run, day.hours, day.slo) for run in runs.values()]
    arrivals = [[(each.row, each.arrived_at_ns) for each in run.requests] for run in runs.values()]
    assert arrivals[0] == arrivals[1] and len(arrivals[0]) == reports[0].num_requests
    assert reports[0].num_changes == 0 and reports[0].num_decisions == {}
    assert sum(reports[1].num_decisions.values()) >= 6 and reports[1].num_worlds > 0
    assert list(reports[1].by_hour) == ["code", "talk"] and 0.0 < reports[1].attained <= 1.0
    assert day_sentence(reports) == "Not every rule was run."


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--rules", "luck"], "'luck' is not known"),
        (["--code", "x.csv"], "belong together"),
        (["--machine", "two-cores"], "is of the five workloads; write --traffic workloads, too"),
        (["--traffic", "workloads", "--code", "x.csv"], "leave them out with --traffic workloads"),
    ],
)
def test_what_cannot_be_run_is_one_sentence(options: list[str], said: str, tmp_path: Path) -> None:
    told = CliRunner().invoke(app, ["planner", *options])
    assert told.exit_code == 2 and said in told.output


def test_a_change_that_is_taken_back_within_an_hour_is_counted() -> None:
    """Red when a planner that swings looks as calm as one that follows the traffic."""
    hours = (Hour("a", 100.0, 1.0, 0.0), Hour("b", 100.0, 1.0, 0.0))

    def returns(*changes: tuple[float, str]) -> int:
        run = DayRun(
            rule="planner",
            requests=(),
            starts_at_ns=0,
            changes=[Change(*each, "") for each in changes],
            num_decisions={},
        )
        return report_day(run, hours, TARGETS).num_returns

    assert returns((10.0, "unified"), (50.0, "1p1d"), (90.0, "unified")) == 2
    assert returns((90.0, "unified"), (110.0, "1p1d")) == 0, "the traffic is another"
    assert returns((10.0, "unified"), (20.0, "hybrid"), (30.0, "1p1d")) == 0
