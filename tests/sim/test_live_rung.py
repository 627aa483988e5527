"""Rung 6: live runs against simulated ones. Red when a recording is read, replayed or compared wrongly.

A simulated run is written down as `relevo bench record` writes a live one; what is known of it has to come out again.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from relevo.bench.record.run import steady_rate
from relevo.bench.records import ClientRecord
from relevo.core.errors import StartError
from relevo.core.events import StepCosts
from relevo.policy.perf.step_time import FittedStepTimes
from relevo.sim.ladder.errors import RungReport, ValueTable
from relevo.sim.ladder.live_rung import FrontEnd, live_rung, measured_front_end, replayed
from relevo.sim.ladder.rungs import run_ladder
from relevo.sim.tables.live_runs import LiveRequest, LiveRun, LiveServer, LiveWorker, read_live_servers, read_workers

COSTS = StepCosts(base_s=0.01, per_token_s=2e-4, per_kv_token_s=1e-6)
WORKERS = {"unified": [("unified-0", "unified")], "1p1d": [("prefill-0", "prefill"), ("decode-0", "decode")]}


def scrape(topology: str, costs: StepCosts = COSTS) -> str:
    lines = []
    for worker, role in WORKERS[topology]:
        lines += [
            f'vllm:cache_config_info{{block_size="16",engine="{worker}",num_gpu_blocks="512",role="{role}"}} 1.0',
            f'relevo:step_budget_tokens{{worker="{worker}"}} 512.0',
            f'relevo:prefill_budget_tokens{{worker="{worker}"}} 128.0',
            f'relevo:step_cost_seconds{{per="step",worker="{worker}"}} {costs.base_s}',
            f'relevo:step_cost_seconds{{per="token",worker="{worker}"}} {costs.per_token_s}',
            f'relevo:step_cost_seconds{{per="kv_token",worker="{worker}"}} {costs.per_kv_token_s}',
        ]
    return "\n".join(lines) + "\n"


def requests(gap_s: float) -> list[LiveRequest]:
    return [
        LiveRequest(
            num_prompt_tokens=100 + 37 * index, num_output_tokens=8 + index % 5, sent_at_s=index * gap_s,
            ttft_s=None, tpot_s=None,
        )
        for index in range(12)
    ]  # fmt: skip


def simulated_rows(server: LiveServer, front_end: FrontEnd, gap_s: float, *, one_client: bool) -> list[dict[str, Any]]:
    run = LiveRun(name="", requests=requests(gap_s), costs={}, lateness_p99_s=0.0)
    costs = {worker.worker_id: FittedStepTimes(COSTS) for worker in server.workers}
    times = replayed(server, run, costs, front_end, one_client=one_client)
    return [
        {
            "outcome": "completed", "sent_at_s": request.sent_at_s, "num_prompt_tokens": request.num_prompt_tokens,
            "num_wanted_input_tokens": request.num_prompt_tokens, "num_output_tokens": request.num_output_tokens,
            "max_tokens": request.num_output_tokens, "client_ttft_s": ttft_s, "tpot_s": tpot_s,
        }
        for request, (ttft_s, tpot_s) in zip(run.requests, times, strict=True)
    ]  # fmt: skip


def write_recording(folder: Path, topology: str, front_end: FrontEnd) -> Path:
    """As if a server had been measured that is the simulated one, and takes `front_end` besides."""
    workers = read_workers(scrape(topology))
    nothing = LiveRun(name="", requests=[], costs={}, lateness_p99_s=0.0)
    server = LiveServer(
        topology=topology, max_running=4, max_model_len=2048, capacity_per_s=1.0, workers=workers,
        quiet=nothing, capacity=nothing, loads={},
    )  # fmt: skip
    place = folder / topology
    place.mkdir(parents=True)
    facts = {
        "topology": topology, "max_running": 4, "max_model_len": 2048, "capacity_per_s": 1.0,
        "load_percents": [30, 120],
    }  # fmt: skip
    (place / "server.json").write_text(json.dumps(facts))
    for name, gap_s in (("quiet", 1.0), ("capacity", 0.2), ("load-30", 0.5), ("load-120", 0.05)):
        rows = simulated_rows(server, front_end, gap_s, one_client=name == "quiet")
        (place / f"{name}.json").write_text(json.dumps({"report": {"lateness_p99_s": 0.0}, "requests": rows}))
        (place / f"{name}.prom").write_text(scrape(topology))
    return place


def errors(report: RungReport) -> list[float]:
    """Of every cell, in percent."""
    tables = [table for table in report.tables if isinstance(table, ValueTable)]
    return [float(cell.split()[-1].rstrip("%")) for table in tables for row in table.rows for cell in row[2:]]


@pytest.mark.parametrize("topology", ["unified", "1p1d"])
def test_a_simulated_run_told_as_a_live_one_is_met_exactly(tmp_path: Path, topology: str) -> None:
    """Of two loads, TPOT and two quantiles of TTFT, with costs from before and from during the run."""
    write_recording(tmp_path, topology, FrontEnd(step_s=0.003, request_s=0.02))
    found = errors(live_rung(tmp_path))
    assert len(found) == 2 * 2 * 3
    assert set(found) == {0.0}


def test_what_one_client_alone_meets_beside_steps_is_found(tmp_path: Path) -> None:
    write_recording(tmp_path, "unified", FrontEnd(step_s=0.003, request_s=0.02))
    (server,) = read_live_servers(tmp_path)
    assert server.workers == [
        LiveWorker(
            worker_id="unified-0", role="unified", block_size=16, num_blocks=512,
            step_budget_tokens=512, prefill_budget_tokens=128,
        )
    ]  # fmt: skip
    front_end = measured_front_end(server)
    assert front_end.step_s == pytest.approx(0.003, abs=1e-6)
    assert front_end.request_s == pytest.approx(0.02, abs=1e-6)


def test_slower_steps_are_told_as_an_error(tmp_path: Path) -> None:
    """The costs of one run are a tenth too high: only what rests on them is off."""
    place = write_recording(tmp_path, "unified", FrontEnd())
    slow = StepCosts(base_s=0.011, per_token_s=2.2e-4, per_kv_token_s=1.1e-6)
    (place / "load-30.prom").write_text(scrape("unified", slow))
    before, during = (table for table in live_rung(tmp_path).tables if isinstance(table, ValueTable))
    assert [row[2].split()[-1] for row in before.rows] == ["+0.0%", "+0.0%"]
    assert [row[2].split()[-1] for row in during.rows] == ["+10.0%", "+0.0%"]


def test_requests_that_failed_are_replayed_and_counted_but_not_compared(tmp_path: Path) -> None:
    place = write_recording(tmp_path, "unified", FrontEnd())
    report = json.loads((place / "load-120.json").read_text())
    report["requests"][3] |= {"outcome": "failed", "client_ttft_s": None, "tpot_s": None, "num_output_tokens": 0}
    (place / "load-120.json").write_text(json.dumps(report))
    tables = live_rung(tmp_path).tables
    assert isinstance(tables[0], ValueTable)
    assert [row[1] for row in tables[0].rows] == ["12", "11 of 12"]
    assert set(errors(live_rung(tmp_path))) == {0.0}


def test_no_recording_and_one_that_was_cut_short_are_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(StartError, match="relevo bench record"):
        run_ladder(tmp_path, [6])
    (write_recording(tmp_path, "unified", FrontEnd()) / "load-120.json").unlink()
    with pytest.raises(StartError, match=r"load-120\.json is not there"):
        run_ladder(tmp_path, [6])


def test_capacity_leaves_the_common_beginning_out() -> None:
    """Eight clients begin together and end together at 4 s; from then on one answer comes every second."""
    ends_s = [4.0] * 8 + [float(second) for second in range(5, 25)]
    records = [
        ClientRecord(index=index, num_wanted_input_tokens=1, max_tokens=1, sent_at_ns=10**9, finished_at_ns=end_ns)
        for index, end_ns in enumerate(round((1 + end_s) * 1e9) for end_s in ends_s)
    ]
    assert steady_rate(records, 20.0) == pytest.approx(1.0)
    with pytest.raises(StartError, match="calibration-s"):
        steady_rate(records[:8], 20.0)
