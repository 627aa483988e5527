"""What is compared is alike: tails instead of means, one kind of load in a table, all differences of arms named."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest
from arm_runs import SLO, outcome_of, phase, plan, request, run_of
from rich.console import Console
from rich.table import Table

from relevo.bench.arms.arm import arms_named
from relevo.bench.arms.results import arm_outcome
from relevo.bench.arms.tables import arms_table
from relevo.bench.records import Endpoint
from relevo.bench.serve.run import ServeOptions
from relevo.bench.workloads.report import WorkloadsReport, workloads_tables
from relevo.core.errors import SettingsError
from relevo.workload.arrivals import ArrivalKind
from relevo.workload.lengths import FixedLength


def told(table: Any) -> str:
    console = Console(width=400)
    with console.capture() as capture:
        console.print(table)
    return capture.get()


def report_of(*outcomes: Any, **parts: Any) -> WorkloadsReport:
    names = ",".join(outcome.name for outcome in outcomes)
    made = {"plan": plan(names), "load": 0.7, "capacities": {}, "outcomes": outcomes, "num_missing": 0}
    return WorkloadsReport(**(made | parts))


def test_outliers_that_a_higher_load_dilutes_win_nothing() -> None:
    """A few cold requests make the mean of the quiet arm ten times as long. Red when means decide."""
    assert SLO.ttft_s is not None
    over_s = SLO.ttft_s * 1.01
    cold = [request(float(i), ttft_s=600.0, met=False) for i in range(2)]
    quiet = run_of(phase("chat", [*cold, *(request(2.0 + i, ttft_s=0.1) for i in range(98))]))
    late = run_of(phase("chat", [request(float(i), ttft_s=over_s, met=False) for i in range(100)]))
    outcomes = [arm_outcome("auto", [quiet]), arm_outcome("unified", [late])]
    means = [outcome.phases[0].ttft.mean for outcome in outcomes]
    assert means[0] is not None and means[1] is not None and means[0] > 4 * means[1]
    (by_phase, overall) = report_of(*outcomes).verdicts
    assert by_phase.ratio is None and overall.ratio is None, "the other arm has nothing in time"
    assert outcomes[0].goodput_per_s > 0.0 == outcomes[1].goodput_per_s
    assert "mean" not in told(workloads_tables(report_of(*outcomes)))


def test_what_waiting_clients_sustain_stands_in_no_table_of_arrivals() -> None:
    """Red when a closed loop's rate is a row or a column beside those of an open one."""
    report = report_of(outcome_of("unified", {"chat": 5}), outcome_of("auto", {"chat": 5}))
    report = report_of(*report.outcomes, capacities={"chat": (98.76, "unified-2048")})
    parts = list(workloads_tables(report).renderables)  # type: ignore[union-attr]
    tables = [part for part in parts if isinstance(part, Table)]
    assert tables and not any("98.76" in told(table) for table in tables)
    assert any("98.76/s" in part and "open loop" in part for part in parts if isinstance(part, str))


def test_one_load_test_is_open_or_closed() -> None:
    options = ServeOptions(
        url="http://127.0.0.1", model=None, endpoint=Endpoint.COMPLETIONS, api_key=None, seed=0,
        input_lengths=FixedLength(8), output_lengths=FixedLength(8), num_requests=1, duration_s=None,
        request_rate_per_s=1.0, arrival=ArrivalKind.POISSON, burstiness=1.0, concurrency=1, trace=None,
        ignore_eos=False, temperature=0.0, num_warmup_requests=0, request_timeout_s=None,
    )  # fmt: skip
    with pytest.raises(SettingsError, match="open loop and --concurrency is closed loop"):
        options.check()


def test_every_pair_of_arms_has_the_same_machine_and_its_differences_are_told() -> None:
    """Red when an arm is given more, or something that the report does not say."""
    arms = arms_named("unified,unified-512,1p1d,2p1d,hybrid,auto", SLO)
    page = told(arms_table(plan("unified,unified-512,1p1d,2p1d,hybrid,auto", serve_flags=("--seed", "7"))))
    for one, other in combinations(arms, 2):
        for flag in set(one.flags) ^ set(other.flags):
            assert flag in page, (one.name, other.name)
        for arm in (one, other):
            assert not {"--num-cores", "--kv-cache-memory-bytes", "--max-num-seqs", "--cores"} & set(arm.flags)
    assert "--seed 7" in page and "every arm" in page
