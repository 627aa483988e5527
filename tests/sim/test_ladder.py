"""The error ladder. Red when a held-out class has a part in its prediction, or a rung's error exceeds its goal."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest
from measured_data import measured_data

from relevo.core.errors import StartError
from relevo.core.events import StepCosts
from relevo.core.kv import KVGroup
from relevo.policy.perf.devices import device
from relevo.policy.perf.engine_constants import EngineConstants
from relevo.policy.perf.fitting import FITTED, MeasuredSteps
from relevo.policy.perf.known_engines import KNOWN, known_engine
from relevo.policy.perf.model_shape import AttentionLayers, ModelShape
from relevo.policy.perf.parallelism import Parallelism
from relevo.policy.perf.step_time import FittedStepTimes, decode_shape
from relevo.policy.perf.step_work import DeviceWork
from relevo.policy.perf.weight_formats import WeightFormat, WeightFormats
from relevo.sim.ladder.__main__ import main
from relevo.sim.ladder.clusters import Cluster, Group, finished, simulate
from relevo.sim.ladder.distserve_rung import rate_at_share, scaled_lengths
from relevo.sim.ladder.errors import ErrorRow, ErrorTable, ValueTable
from relevo.sim.ladder.known_constants import known_constants
from relevo.sim.ladder.leave_out import LabelledSteps, constants_without, seen_errors, unseen_errors
from relevo.sim.ladder.silicon_steps import SiliconServers
from relevo.sim.ladder.tpot_rung import CONFIGS, read_rows, tpot_rung
from relevo.sim.ladder.vllm_rung import vllm_rung
from relevo.sim.reuse import reuse_curve
from relevo.workload.requests import WorkloadRequest
from relevo.workload.traces.files import read_trace_file

SLOW = EngineConstants(layer_s=1.2e-4, memory_efficiency=0.7)


def dense(num_layers: int) -> ModelShape:
    layers = AttentionLayers(
        cache=KVGroup.full(range(num_layers), 8, 128), num_weights=10**7,
        products_per_decode_pair=8192, products_per_prefill_pair=8192,
    )  # fmt: skip
    return ModelShape(
        name="dense", hidden_size=4096, vocab_size=32000, is_tied=False, attention=(layers,),
        num_dense_weights=num_layers * 10**8, experts=None, formats=WeightFormats.uniform(WeightFormat.BF16),
    )  # fmt: skip


def runs(model: str, engine: str, constants: EngineConstants) -> list[LabelledSteps]:
    work = DeviceWork(dense(20 + 10 * len(model)), device("h100"), Parallelism(tensor=2))
    return [
        LabelledSteps(
            row_id=f"{model} {engine} {rows}", model=model, engine=engine, device="h100", cell=f"{model} {engine}",
            steps=MeasuredSteps(((1.0, step),), constants.seconds(step)),
        )
        for rows in (1, 2, 4, 8, 16, 32, 64)
        for step in [work.work(decode_shape(rows, rows * 1000))]
    ]  # fmt: skip


def test_a_held_out_class_has_no_part_in_its_prediction() -> None:
    """Whatever the held-out rows say, the constants that predict them are the same to the last bit."""
    seen = runs("a", "x", EngineConstants()) + runs("bb", "y", SLOW)
    held_out = runs("ccc", "x", SLOW)
    absurd = [replace(row, steps=replace(row.steps, measured_s=row.steps.measured_s * 50)) for row in held_out]
    ((_, honest),) = constants_without(seen + held_out, lambda row: row.model, "ccc")
    ((_, other),) = constants_without(seen + absurd, lambda row: row.model, "ccc")
    assert honest == other


def test_classes_are_predicted_from_the_nearest_that_were_seen() -> None:
    """Engine y is slow: a model that was never seen on it is predicted slow, though x ran it fast."""
    rows = [
        row
        for model in ("a", "bb", "ccc")
        for engine, constants in (("x", EngineConstants()), ("y", SLOW))
        for row in runs(model, engine, constants) * 10
    ]
    errors = unseen_errors(rows, lambda row: f"{row.model} {row.engine}")
    assert len(errors) == 6
    assert max(abs(error) for found in errors.values() for error in found) < 0.15


def test_five_seen_rows_are_not_among_the_predicted() -> None:
    rows = runs("a", "x", EngineConstants()) + runs("bb", "x", EngineConstants())[:5] + runs("ccc", "x", SLOW)
    errors, num_alone = seen_errors(rows)
    assert num_alone == 5  # nothing to predict in a cell of five
    assert {cell: len(found) for cell, found in errors.items()} == {"a x": 10, "ccc x": 10}  # two others, five draws
    assert max(map(abs, errors["ccc x"])) < 0.1


def test_errors_are_summed_up_per_class() -> None:
    table = ErrorTable.of("t", "g", {"b": [0.1, -0.3, 0.2], "a": [0.5]})
    assert [row.name for row in table.rows] == ["a", "b"]
    assert table.rows[1] == ErrorRow(name="b", num_rows=3, median_error=0.2, p90_error=0.3, bias=0.1)
    assert table.overall.num_rows == 4


def test_a_missing_folder_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path), "--rung", "1"]) == 1
    assert "needs measured data" in capsys.readouterr().err


def test_known_engines_are_told_apart_from_unknown_ones() -> None:
    assert known_engine("vllm", "h100") is KNOWN["vllm", "h100"]
    with pytest.raises(StartError, match="vllm on h100"):
        known_engine("vllm", "tpu")
    for constants in KNOWN.values():
        assert all(0.0 < getattr(constants, name) <= 1.0 for name in FITTED)


def test_models_never_seen_are_predicted_on_one_device() -> None:
    """H100 alone, a few seconds: the whole rung is below."""
    folder = measured_data()
    servers = SiliconServers(folder / CONFIGS)
    rows = [servers.steps(row) for row in read_rows(folder).rows if row.device == "h100"]
    errors = [error for found in unseen_errors(rows, lambda row: row.model).values() for error in found]
    assert len(errors) == len(rows) > 800
    assert ErrorRow.of("h100", errors).median_error < 0.20


@pytest.mark.slow
def test_rung_1_keeps_its_goals(tmp_path: Path) -> None:
    """Each model, engine and device that was never seen below 20 %, with five rows seen below 10 %."""
    report = tpot_rung(measured_data())
    assert report.facts["rows"] == 3045
    _, model, engine, device_table, _, seen = report.tables
    for table in (model, engine, device_table):
        assert isinstance(table, ErrorTable)
        assert {row.name: row.median_error for row in table.rows if row.median_error >= 0.20} == {}
        assert sum(row.num_rows for row in table.rows) == 3045
    assert isinstance(seen, ErrorTable)
    assert seen.overall.median_error < 0.10
    json.dumps(report.to_json())


@pytest.mark.slow
def test_the_table_of_known_engines_is_what_the_data_say() -> None:
    """Red when the model of a step changes and the table was not fitted anew."""
    for name, constants in known_constants(measured_data()).items():
        for field in (*FITTED, "ttft_floor_s"):
            assert getattr(KNOWN[name], field) == pytest.approx(getattr(constants, field), rel=0.02), (name, field)


@pytest.mark.slow
def test_rung_2_keeps_its_goals_where_kv_suffices() -> None:
    """Of step times fitted to a run's own seconds, in the mean: TPOT below 3 %, TTFT below 10 %. The run on the
    smallest card preempts, and misses both: see docs/simulation.md."""
    (table,) = vllm_rung(measured_data()).tables
    assert isinstance(table, ValueTable)
    own = [row for row in table.rows if "own seconds" in row[0] and "RTX4090" not in row[0]]
    errors = {(row[0], row[1]): abs(float(row[4].rstrip("%"))) for row in own}
    assert len(errors) == 9
    assert {key: error for key, error in errors.items() if error >= {"TTFT": 10, "TPOT": 3, "E2E": 10}[key[1]]} == {}


def test_worlds_of_the_ladder_run_every_request_to_its_end() -> None:
    """Two requests one after the other on a server of 1 ms steps: 10 tokens take 9 further steps."""
    times = FittedStepTimes(StepCosts(base_s=1e-3, per_token_s=0.0, per_kv_token_s=0.0))
    group = Group(role="unified", num_workers=1, times=times, num_pool_tokens=1600)
    rows = [
        WorkloadRequest(row=row, num_prompt_tokens=100, num_output_tokens=10, arrived_at_s=row * 1.0) for row in (0, 1)
    ]
    results = finished(simulate(Cluster(groups=[group]), rows))
    assert [each.times.tpot_s for each in results] == [pytest.approx(1e-3), pytest.approx(1e-3)]
    never = replace(group, num_pool_tokens=64)
    with pytest.raises(ValueError, match="did not finish"):
        finished(simulate(Cluster(groups=[never]), rows))


def test_where_a_share_falls_below_its_goal() -> None:
    assert rate_at_share({1.0: 0.95, 2.0: 0.85, 3.0: 0.2}) == "1.50"
    assert rate_at_share({1.0: 0.85, 2.0: 0.2}) == "< 1.00"
    assert rate_at_share({1.0: 1.0, 2.0: 0.95}) == "> 2.00"


def test_lengths_are_scaled_to_the_published_means() -> None:
    lengths = scaled_lengths(measured_data())
    assert fmean(prompt for prompt, _ in lengths) == pytest.approx(755.5, rel=0.01)
    assert fmean(output for _, output in lengths) == pytest.approx(200.3, rel=0.01)
    assert max(prompt + output for prompt, output in lengths) <= 2048


def test_reuse_of_mooncakes_traces_is_what_others_counted() -> None:
    """Share of an unbounded cache's hits at 3M and 10M tokens, counted independently with one LRU in arrival order."""
    trace = read_trace_file(measured_data() / "traces" / "mooncake_synthetic_trace.jsonl")
    most, bounded = reuse_curve(trace.requests, 512, (3_000_000, 10_000_000))
    assert most.hit_fraction == pytest.approx(0.6396, abs=1e-4)
    assert [share for _, share in bounded] == pytest.approx([0.484, 0.886], abs=1e-3)
