"""What the pages of role switches, of workloads and of the frontier say of results that are known."""

from __future__ import annotations

from collections.abc import Callable
from html import unescape

import pytest
from arm_runs import frontier_of, outcome_of, plan

from relevo.bench.frontier.pictures import frontier_page
from relevo.bench.frontier.report import FrontierReport
from relevo.bench.html.page import Origin, Report, page
from relevo.bench.roles.pictures import roles_page
from relevo.bench.roles.report import RolesResult, StressCheck, Switched
from relevo.bench.workloads.pictures import workloads_page
from relevo.bench.workloads.report import WorkloadsReport

ORIGIN = Origin(command="relevo bench", at="now", facts=[], settings=[])


def switched(effect_s: float | None) -> Switched:
    return Switched(
        worker="decode-0", before="decode", role="3:1", asked_at_s=1.0, effect_s=effect_s, longest_gap_s=0.05
    )


def roles(**changes: object) -> RolesResult:
    made: dict[str, object] = {
        "quiet_gaps_s": [0.02] * 2000,
        "quiet_s": 60.0,
        "switching_gaps": [(0.1 * i, 0.05) for i in range(2000)],
        "switching_s": 200.0,
        "switches": [switched(0.1), switched(0.3)],
        "num_wanted": 2,
        "num_asked": {"stream": 40, "prompt": 3},
        "leftovers": "",
    }
    return RolesResult(**(made | changes))  # type: ignore[arg-type]


def workloads() -> WorkloadsReport:
    outcomes = [outcome_of("unified", {"chat": 10, "burst": 4}), outcome_of("auto", {"chat": 9, "burst": 8})]
    capacities = {"chat": (2.5, "unified-2048")}
    return WorkloadsReport(plan=plan("unified,auto"), load=0.7, capacities=capacities, outcomes=outcomes, num_missing=1)


def frontier() -> FrontierReport:
    return frontier_of(unified_512=(0.5, 0.2), auto=(0.52, 0.05))


def nothing() -> list[Report]:
    empty = WorkloadsReport(plan=plan("unified,auto"), load=0.7, capacities={}, outcomes=[], num_missing=3)
    blank = FrontierReport(
        plan=plan("auto"), capacity_per_s=0.0, best_unified="", capacities={}, outcomes=[], num_missing=2
    )
    return [workloads_page(empty), frontier_page(blank), roles_page(RolesResult())]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: roles_page(roles()), ["2 switches; all that could be told holds.", "3:1", "40 streams, 3 prompts"]),
        (
            lambda: workloads_page(workloads()),
            ["auto meets 2 of 3 goals; missed: chat 0.90x of unified.", "1 parts are not measured", "--planner on"],
        ),
        (lambda: frontier_page(frontier()), ["At 60 % auto lies outside", "auto meets both goals", "front, outside"]),
    ],
)
def test_a_page_tells_the_result(make: Callable[[], Report], words: list[str]) -> None:
    text = unescape(page(make(), ORIGIN, b"{}"))
    for expected in words:
        assert expected in text


def test_nothing_measured_is_a_page_too() -> None:
    for report in nothing():
        assert report.sentence.endswith(".")
        assert page(report, ORIGIN, b"{}", partial="it was interrupted")


@pytest.mark.parametrize(
    ("changes", "failed"),
    [
        ({"wrong": ["stream: lost: disconnected"]}, "no request lost or changed"),
        ({"switches": [switched(0.1), switched(2.5)]}, "effect within 2 s"),
        ({"switches": [switched(0.1), switched(None)]}, "effect within 2 s"),
        ({"leftovers": "relevo:blocks 3"}, "back to baseline"),
        ({"switching_gaps": [(0.0, 0.061)]}, "no gap above 3x"),
        ({"num_wanted": 3}, "3 switches"),
        ({"stress": [StressCheck(name="two at once", wrong=["HTTP 500"])]}, "two at once: HTTP 500"),
    ],
)
def test_each_thing_that_must_hold_can_fail(changes: dict[str, object], failed: str) -> None:
    (told,) = roles(**changes).failed
    assert failed in told


def test_a_limit_from_too_few_gaps_is_not_told() -> None:
    result = roles(quiet_gaps_s=[0.02] * 50)
    assert not result.failed
    assert [holds for what, _, holds in result.bars if what.startswith("no gap")] == [None]
