"""Arms, their turns, parts on disk, and the arithmetic of the reports that compare them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from arm_runs import SLO, frontier_of, outcome_of, phase, plan, request, run_of

from relevo.bench.arms.arm import arm_named, arms_named, in_turns
from relevo.bench.arms.results import arm_outcome, by_time, told_ms
from relevo.bench.arms.slices import Slices
from relevo.bench.frontier.report import front, is_outside, meets
from relevo.bench.frontier.run import FrontierOptions
from relevo.bench.workloads.report import WorkloadsReport, adapted_after_s
from relevo.core.errors import SettingsError
from relevo.core.role import HYBRID, Role
from relevo.telemetry.distribution import distribution
from relevo.telemetry.latency import Slo
from relevo.workload.open_loop import Scale


def test_arms_say_all_in_which_they_differ() -> None:
    """Red when an arm gets other flags than its name says, or a fixed chunk size is bounded by a target besides."""
    targets = ("--slo-ttft-p90", "2s", "--slo-itl-p90", "0.1s")
    assert arm_named("unified", SLO).flags == ("--topology", "unified", *targets)
    chunked = arm_named("unified-512", SLO)
    assert (chunked.flags, chunked.chunk_size) == (("--topology", "unified", "--max-num-batched-tokens", "512"), 512)
    assert arm_named("2p1d", SLO).flags == ("--topology", "2p1d", *targets)
    assert arm_named("auto", SLO).flags == ("--topology", "auto", "--planner", "on", *targets)
    assert (arm_named("hybrid", SLO).role, arm_named("hybrid-1:3", SLO).role) == (HYBRID, Role(1, 3))
    assert arm_named("hybrid-1:3", SLO).words.endswith("then every worker is made 1:3")
    assert [arm.is_fixed for arm in arms_named("unified,auto,1p1d", SLO)] == [True, False, True]


@pytest.mark.parametrize(
    "text", ["", "unified,unified", "two", "0p1d", "unified-", "hybrid-3", "hybrid-200:1", "auto-2"]
)
def test_what_is_no_arm_is_refused(text: str) -> None:
    with pytest.raises(SettingsError):
        arms_named(text, SLO)


def test_every_second_round_goes_back() -> None:
    arms = arms_named("unified,1p1d,auto", SLO)
    turns = [(number, arm.name) for number, arm in in_turns(arms, 2)]
    assert turns == [(1, "unified"), (1, "1p1d"), (1, "auto"), (2, "auto"), (2, "1p1d"), (2, "unified")]


@pytest.mark.parametrize(
    "changes",
    [
        {"rounds": 0},
        {"capacity_arms": arms_named("1p1d", SLO)},
        {"scale": Scale(0.0, 1.0)},
        {"scale": Scale(1.0, float("nan"))},
        {"slo": Slo(ttft_s=0.0, itl_s=0.1)},
    ],
)
def test_a_plan_that_cannot_be_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(SettingsError):
        plan("unified", **changes).check()


def test_parts_are_kept_and_belong_to_one_set_of_options(tmp_path: Path) -> None:
    """Red when results of other options are mixed in, or a part that is there is measured again."""
    folder = tmp_path / "results"
    slices = Slices(folder, {"load": 0.7})
    slices.open()
    assert slices.read("a") is None
    slices.write("a", {"x": [1.5]})
    again = Slices(folder, {"load": 0.7})
    again.open()
    assert again.read("a") == {"x": [1.5]}
    with pytest.raises(SettingsError, match=r"load 0.7 instead of 0.8"):
        Slices(folder, {"load": 0.8}).open()
    (folder / "b.json").write_text("{")
    with pytest.raises(SettingsError, match="remove it"):
        again.read("b")


def test_a_folder_with_other_files_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(SettingsError, match="a folder of its own"):
        Slices(tmp_path, {}).open()
    with pytest.raises(SettingsError):
        Slices(tmp_path / "notes.txt", {}).open()


def test_no_part_is_begun_that_would_not_end_in_time(tmp_path: Path) -> None:
    slices = Slices(tmp_path / "r", {}, max_s=100.0)
    slices.open()
    assert slices.has_time_for(60.0, "arm")
    assert not slices.has_time_for(90.0, "arm")  # and what a start takes
    slices.write("a", {}, kind="arm", took_s=150.0)
    assert not slices.has_time_for(1.0, "arm")
    assert Slices(tmp_path / "r", {}).has_time_for(1e9)


def test_goodput_counts_every_request_that_arrived_and_no_warm_up() -> None:
    lost = request(12.0) | {"outcome": "failed", "met": False, "client_ttft_s": None, "itl_s": [], "tpot_s": None}
    warm_up = phase("warm-up", [request(1.0)], is_warm_up=True)
    first = run_of(warm_up, phase("chat", [request(11.0), lost, request(19.0, met=False)]))
    second = run_of(warm_up, phase("chat", [request(12.0), request(17.0)]), number=2)
    outcome = arm_outcome("auto", [first, second])
    (chat,) = outcome.phases
    assert (chat.rounds, len(chat.answers), chat.num_met, chat.num_failed) == (2, 5, 3, 1)
    assert chat.goodput_per_s == pytest.approx(3 / 20)
    assert chat.late_goodput_per_s == pytest.approx(1 / 10)  # 17 s is 7 s into the phase
    assert (chat.ttft.count, chat.ttft.num_missing) == (5, 1)


def test_switches_of_two_workers_are_one_and_ways_back_are_counted() -> None:
    """Red when an arm that goes back and forth looks calm, or a role change of both workers counts twice."""
    split, both = {"a": "prefill", "b": "decode"}, {"a": "hybrid", "b": "hybrid"}
    between = {"a": "hybrid", "b": "decode"}
    roles = [(0.1, split), (12.0, between), (12.4, both), (17.0, split)]
    outcome = arm_outcome("auto", [run_of(phase("x", []), phase("y", []), roles=roles)])
    assert [(switch.phase, switch.after_s) for switch in outcome.switches] == [("y", pytest.approx(2.4)), ("y", 7.0)]
    assert outcome.num_returns == 1
    assert adapted_after_s(outcome, "y") == 7.0
    assert adapted_after_s(outcome, "x") is None


def test_the_adapting_arm_is_held_against_the_best_of_each_and_each_over_all() -> None:
    outcomes = [
        outcome_of("unified", {"chat": 10, "burst": 4}),
        outcome_of("1p1d", {"chat": 4, "burst": 8}),
        outcome_of("auto", {"chat": 9, "burst": 8}),
    ]
    report = WorkloadsReport(plan=plan("unified,1p1d,auto"), load=0.7, capacities={}, outcomes=outcomes, num_missing=0)
    found = [(v.what, v.against, v.ratio, v.is_met) for v in report.verdicts]
    assert found == [
        ("chat", "unified", pytest.approx(0.9), False),
        ("burst", "1p1d", pytest.approx(1.0), True),
        ("all in sequence", "unified", pytest.approx(17 / 14), True),
        ("all in sequence", "1p1d", pytest.approx(17 / 12), True),
    ]


def test_where_nothing_is_in_time_no_goal_is_met() -> None:
    outcomes = [outcome_of("unified", {"chat": 0}), outcome_of("auto", {"chat": 0})]
    report = WorkloadsReport(plan=plan("unified,auto"), load=0.7, capacities={}, outcomes=outcomes, num_missing=0)
    assert [verdict.is_met for verdict in report.verdicts] == [None, None]


def test_gaps_weigh_by_their_length() -> None:
    """Nine hundred gaps of 10 ms and a hundred of 90 ms: a tenth of the gaps, half of the time."""
    gaps = [0.01] * 900 + [0.09] * 100
    assert distribution(gaps).value("p50") == pytest.approx(0.01)
    assert by_time(gaps, 0.45) == pytest.approx(0.01)
    assert by_time(gaps, 0.55) == pytest.approx(0.09)
    assert by_time(gaps, 0.9) == pytest.approx(0.09)
    assert by_time([0.01] * 9, 0.5) is None  # fewer than ten beyond
    assert by_time([], 0.5) is None
    assert told_ms(distribution([0.1] * 99).quantiles["p90"]) == "too few"


def test_the_front_and_what_is_outside_of_it() -> None:
    report = frontier_of(
        unified_128=(1.0, 0.05), unified_512=(0.5, 0.2), hybrid=(0.6, 0.04), auto=(0.52, 0.05), **{"1p1d": (2.0, 0.06)}
    )
    points = {point.arm: point for point in report.points("60 %")}
    every = list(points.values())
    assert [point.arm for point in front(every)] == ["unified-512", "hybrid", "auto"]
    assert {name for name, point in points.items() if is_outside(point, every)} == {"hybrid", "auto"}
    ratios = report.ratios_at("60 %")
    assert set(ratios) == {"hybrid", "auto", "1p1d"}
    assert ratios["auto"]["itl_p99"] == pytest.approx(4.0)
    assert ratios["auto"]["ttft_p90"] == pytest.approx(1.04)
    assert [meets(ratios[name]) for name in ("auto", "hybrid", "1p1d")] == [True, False, False]
    assert meets({"itl_p90": 4.0, "itl_p99": None, "ttft_p90": 1.0}) is None


def test_what_the_others_are_compared_with_has_to_be_an_arm() -> None:
    """Red when a run of half an hour ends without a ratio."""
    options = FrontierOptions(plan=plan("unified-512,auto"), percents=[60], load_s=1.0, settle_s=0.0)
    with pytest.raises(SettingsError, match="unified-2048"):
        options.check()


def test_an_arm_that_equals_a_fixed_one_is_not_outside() -> None:
    """Red when a tie with another mode is sold as a gain."""
    report = frontier_of(unified_512=(0.5, 0.2), hybrid=(0.6, 0.04), auto=(0.6, 0.04))
    points = {point.arm: point for point in report.points("60 %")}
    assert is_outside(points["hybrid"], list(points.values()))
    assert not is_outside(points["auto"], list(points.values()))
