"""Readers of measured tables, on a few lines of each format. Red when a column is read as another, or a run twice."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from relevo.core.errors import ModelFileError, StartError
from relevo.policy.perf.parallelism import Parallelism
from relevo.policy.perf.step_time import StepShape, decode_shape
from relevo.policy.perf.weight_formats import WeightFormat
from relevo.sim.tables.distserve import read_distserve
from relevo.sim.tables.live_worker import read_engine_report, read_metrics
from relevo.sim.tables.model_files import config_path, read_model_shape
from relevo.sim.tables.silicon import SiliconTable, read_silicon
from relevo.sim.tables.splitwise import SplitwiseKey, read_splitwise
from relevo.sim.tables.vllm_runs import read_vllm_run

SILICON_COLUMNS = (
    "id,silicon_data_source,backend,backend_version,model_path,system,precision,mode,isl,osl,moe_quant_mode,batch_size,"
    "tp_size,attention_dp_size,moe_tp_size,moe_ep_size,prefill_num_workers,prefill_tp_size,prefill_attention_dp_size,"
    "prefill_moe_tp_size,prefill_moe_ep_size,decode_batch_size,decode_num_workers,decode_tp_size,"
    "decode_attention_dp_size,decode_moe_tp_size,decode_moe_ep_size,silicon_ttft_ms,silicon_tpot_ms"
)


def silicon(*records: dict[str, str]) -> SiliconTable:
    columns = SILICON_COLUMNS.split(",")
    plain = {"backend": "vllm", "system": "h200_sxm", "mode": "agg", "isl": "1024", "osl": "512", "batch_size": "8"}
    lines = [",".join((plain | record).get(column, "") for column in columns) for record in records]
    return read_silicon([SILICON_COLUMNS, *lines])


def run(ttft_ms: float, **record: str) -> dict[str, str]:
    return {
        "id": f"r{ttft_ms}", "silicon_data_source": "x; silicon_concurrency=64; y", "model_path": "o/m",
        "silicon_ttft_ms": str(ttft_ms), "silicon_tpot_ms": "10.5", "tp_size": "8", "attention_dp_size": "1",
        "moe_tp_size": "8", "moe_ep_size": "1", **record,
    }  # fmt: skip


SPLIT = {
    "mode": "disagg", "prefill_num_workers": "1", "prefill_tp_size": "8", "prefill_attention_dp_size": "1",
    "prefill_moe_tp_size": "8", "prefill_moe_ep_size": "1", "decode_batch_size": "16", "decode_num_workers": "3",
    "decode_tp_size": "1", "decode_attention_dp_size": "8", "decode_moe_tp_size": "1", "decode_moe_ep_size": "8",
}  # fmt: skip


def test_an_aggregated_run() -> None:
    (row,) = silicon(run(100.0, precision="fp8", moe_quant_mode="fp8_block")).rows
    assert (row.model, row.engine, row.device, row.precision) == ("o/m", "vllm", "h200", "fp8_block")
    assert (row.concurrency, row.num_workers, row.prefill) == (64, 1, None)
    assert row.parallelism == Parallelism(tensor=8)
    assert (row.ttft_s, row.tpot_s) == (pytest.approx(0.1), pytest.approx(0.0105))


def test_a_disaggregated_run_has_two_sides() -> None:
    (row,) = silicon(run(100.0, **SPLIT)).rows
    assert row.prefill is not None
    assert row.prefill.parallelism == Parallelism(tensor=8)
    assert (row.num_workers, row.parallelism) == (3, Parallelism(attention_data=8, expert=8))


@pytest.mark.parametrize(
    ("stated", "real"),
    [
        (("64", "1", "8", "8"), Parallelism(tensor=8, expert=8)),
        (("16", "1", "4", "4"), Parallelism(tensor=4, expert=4)),
        (("1", "64", "8", "8"), Parallelism(attention_data=8, expert=8)),
        (("4", "4", "1", "16"), Parallelism(attention_data=4, expert=4)),
        (("4", "1", "4", "1"), Parallelism(tensor=4)),
        (("8", "1", "1", "8"), Parallelism(tensor=8, expert=8)),
    ],
)
def test_layouts_written_as_products_are_taken_back(stated: tuple[str, ...], real: Parallelism) -> None:
    names = ("tp_size", "attention_dp_size", "moe_tp_size", "moe_ep_size")
    (row,) = silicon(run(100.0, **dict(zip(names, stated, strict=True)))).rows
    assert row.parallelism == real


def test_every_record_is_a_row_or_left_out_for_one_reason() -> None:
    table = silicon(
        run(100.0),
        run(100.001),  # the same in a rounded dump
        run(200.0, mode="disagg", decode_tp_size="8"),
        run(200.0, **SPLIT),  # the same with its layout: this one counts
        run(300.0, mode="disagg", decode_tp_size="8"),
        run(400.0, tp_size="72", moe_tp_size="72"),
    )
    assert [row.ttft_s for row in table.rows] == [pytest.approx(0.1), pytest.approx(0.2)]
    assert table.left_out == {
        "the same run again": 2,
        "disaggregated, layout of workers missing": 1,
        "more ranks than a node has: disaggregated, layout missing": 1,
    }


def test_splitwise() -> None:
    lines = [
        "model,hardware,prompt_size,batch_size,token_size,peak_power,average_power,prompt_time,token_time,e2e_time,"
        "tensor_parallel",
        "llama2-70b,h100-80gb,512,1,128,1,1,50,30,0,8",
        "llama2-70b,h100-80gb,512,1,128,1,1,54,30,0,8",
        "llama2-70b,h100-80gb,512,64,128,1,1,3000,50,0,8",
        "llama2-70b,h100-80gb,2048,1,128,1,1,140,34,0,8",
        "llama2-70b,h100-80gb,2048,64,128,1,1,9000,80,0,8",
    ]
    model = read_splitwise(lines)[SplitwiseKey("llama2-70b", "h100-80gb", 8)]
    assert model.step_s(StepShape().with_chunk(512, 0)) == pytest.approx(0.052)  # the median of two runs
    assert model.step_s(decode_shape(1, 576)) == pytest.approx(0.030)
    assert model.step_s(decode_shape(1, (576 + 2112) / 2)) == pytest.approx(0.032)
    assert model.holds(decode_shape(64, 64 * 2000))
    assert not model.holds(decode_shape(64, 64 * 4000))
    theirs = read_splitwise(lines, as_splitwise_sim=True)[SplitwiseKey("llama2-70b", "h100-80gb", 8)]
    assert theirs.step_s(StepShape().with_chunk(512, 0)) == pytest.approx(0.052)
    by_tokens = {512: 0.030, 2048: 0.034}  # prompt tokens of a batch, under which they file a token's time
    slope = (by_tokens[2048] - by_tokens[512]) / (2048 - 512)
    assert theirs.step_s(decode_shape(64, 64 * 576)) == pytest.approx(0.030 - slope * (512 - 64))


def test_distserve() -> None:
    fitted = {
        "decoding_large_small_bs_threshold": 95, "prefill": [18.0, 0.1, 7e-6],
        "decoding_smallbs": [20.0, 6e-4, 0.04], "decoding_largebs": [7.0, 6e-4, 0.16],
    }  # fmt: skip
    parsed = {"facebook/opt-13b": {"1": fitted}}
    model = read_distserve(parsed, "facebook/opt-13b", 1)
    assert model.step_s(StepShape().with_chunk(300, 0)) == pytest.approx((18 + 30 + 0.63 + 1 + 2 + 0.03) / 1e3)
    assert model.step_s(decode_shape(10, 3000)) == pytest.approx((20 + 1.8 + 0.4 + 2 + 0.3) / 1e3)
    with pytest.raises(StartError, match="opt-13b x1"):
        read_distserve(parsed, "facebook/opt-66b", 4)


def test_a_scrape_of_a_live_gateway() -> None:
    text = "".join(
        f'relevo:step_cost_seconds{{model_name="m",worker="{worker}",role="unified",per="{per}"}} {value}\n'
        for worker, values in (("w0", (1e-3, 2e-4, 3e-7)), ("w1", (0, 0, 0)))
        for per, value in zip(("step", "token", "kv_token"), values, strict=True)
    )
    (model,) = read_metrics("# TYPE relevo:step_cost_seconds gauge\n" + text).values()
    assert model.step_s(decode_shape(2, 1000)) == pytest.approx(1e-3 + 4e-4 + 3e-4)
    with pytest.raises(StartError, match="step_cost_seconds"):
        read_metrics("# TYPE up gauge\nup 1\n")


def test_a_report_of_bench_engine() -> None:
    """Rows that a linear step time explains exactly are explained by what is read."""

    def step_s(num_tokens: float, num_kv_tokens: float) -> float:
        return 2e-3 + 1e-4 * num_tokens + 5e-7 * num_kv_tokens

    chunks = [step_s(256, 256 * (i + 1)) for i in range(4)]
    prefill = [
        {"prompt_len": 1024, "num_steps": 4, "tokens_per_s": {"median": 1024 / sum(chunks)}},
        {"prompt_len": 128, "num_steps": 1, "tokens_per_s": {"median": 128 / step_s(128, 128)}},
    ]
    decode = [
        {"batch_size": batch, "context": context, "step_s": {"median": step_s(batch, batch * context)}}
        for batch in (1, 4, 16)
        for context in (100, 2000)
    ]
    costs = read_engine_report({"prefill": prefill, "decode": decode}).costs
    assert (costs.base_s, costs.per_token_s, costs.per_kv_token_s) == pytest.approx((2e-3, 1e-4, 5e-7), rel=1e-2)
    with pytest.raises(StartError, match="bench engine"):
        read_engine_report({"rows": []})


def test_a_config_with_its_formats_beside_it(tmp_path: Path) -> None:
    config = {
        "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
        "num_attention_heads": 4, "vocab_size": 100,
    }  # fmt: skip
    path = config_path(tmp_path, "org/tiny")
    path.write_text(json.dumps(config))
    assert read_model_shape(path).formats.dense is WeightFormat.BF16
    beside = tmp_path / "org--tiny_hf_quant_config.json"
    beside.write_text(json.dumps({"quantization": {"quant_algo": "FP8", "exclude_modules": ["lm_head"]}}))
    assert read_model_shape(path).formats.dense is WeightFormat.FP8
    path.write_text("[]")
    with pytest.raises(ModelFileError, match="no JSON object"):
        read_model_shape(path)


def test_a_recorded_vllm_run(tmp_path: Path) -> None:
    folder = tmp_path / "CARD" / "m" / "vllm"
    folder.mkdir(parents=True)
    settings = {
        "model": "o/m", "tensor_parallel_size": 2, "data_parallel_size": 1, "enable_expert_parallel": False,
        "max_num_seqs": 128, "max_num_batched_tokens": 2048,
    }  # fmt: skip
    (folder / "meta.json").write_text(json.dumps({"engine_kwargs": settings, "kv_cache": {"num_gpu_blocks": 99}}))
    times = {"queued_ts": 100.0, "scheduled_ts": 100.1, "first_token_ts": 100.5, "last_token_ts": 102.5}
    request = {"input_toks": 50, "output_toks": 101, "arrival_time": 9e9, **times}
    (folder / "requests.jsonl").write_text(json.dumps(request) + "\n")
    seconds = "t,prompt_throughput,gen_throughput,running,waiting,kv_cache_pct\n1.0,50.0,30.0,1,0,0.5\n"
    (folder / "timeseries.csv").write_text(seconds)
    run = read_vllm_run(folder)
    assert (run.card, run.model, run.tensor, run.num_blocks, run.max_rows) == ("CARD", "o/m", 2, 99, 128)
    (recorded,) = run.requests
    assert (recorded.ttft_s, recorded.tpot_s, recorded.e2e_s) == pytest.approx((0.5, 0.02, 2.5))
    assert [recorded.context_at(at_s) for at_s in (0.4, 0.5, 1.5, 2.5)] == [0.0, 50.0, 100.5, 0.0]
    assert run.seconds[0].output_tokens_per_s == 30.0


@pytest.mark.parametrize("times", [1e-3, 1e3])
def test_a_table_in_another_unit_is_refused(times: float) -> None:
    """Red when milliseconds are taken for seconds, or the other way round, and a plan is a thousand times off."""
    fitted = {
        "decoding_large_small_bs_threshold": 95, "prefill": [18.0 * times, 0.1 * times, 7e-6 * times],
        "decoding_smallbs": [20.0 * times, 6e-4 * times, 0.04 * times], "decoding_largebs": [7.0, 6e-4, 0.16],
    }  # fmt: skip
    with pytest.raises(StartError, match=r"opt-13b on 1 devices: .*is it in another unit\?"):
        read_distserve({"facebook/opt-13b": {"1": fitted}}, "facebook/opt-13b", 1)
    columns = "model,hardware,prompt_size,batch_size,token_size,prompt_time,token_time,tensor_parallel"
    rows = [f"llama2-70b,h100-80gb,{size},1,128,{50 * times},{30 * times},8" for size in (512, 1024)]
    with pytest.raises(StartError, match=r"llama2-70b on h100-80gb: a token of one stream takes"):
        read_splitwise([columns, *rows])
    with pytest.raises(StartError, match=r"expected are 0\.0003 to 3 s"):
        silicon(run(100.0, silicon_tpot_ms=str(10.5 * times)))
