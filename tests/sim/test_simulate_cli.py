"""`relevo simulate` as a person types it: tables, JSON, the same bytes twice, and one sentence for a mistake."""

from __future__ import annotations

import json
import time
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from relevo.bench.html.file import read_data
from relevo.cli.simulate import simulate as command
from relevo.core.errors import RelevoError

CONFIG = {
    "model_type": "llama",
    "hidden_size": 2048,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 8192,
    "vocab_size": 128_256,
}
TRACE = "".join(
    json.dumps({"timestamp": 400 * i, "input_length": 1000 + i, "output_length": 8 + i % 5, "hash_ids": [0, 2 * i + 1]})
    + "\n"
    for i in range(30)
)


def simulate(*arguments: str) -> Result:
    app = typer.Typer()
    app.command()(command)
    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": "200"})


def refused(*arguments: str) -> str:
    """The one sentence of what cannot be simulated; `relevo` prints it and exits with 2."""
    error = simulate(*arguments).exception
    assert isinstance(error, RelevoError), error
    return error.message


@pytest.fixture
def model(tmp_path: Path) -> list[str]:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG))
    return ["--model", str(path), "--device", "l40s"]


@pytest.fixture
def trace(tmp_path: Path) -> list[str]:
    path = tmp_path / "trace.jsonl"
    path.write_text(TRACE)
    return ["--trace", str(path)]


def test_configurations_stand_beside_each_other(tmp_path: Path, model: list[str], trace: list[str]) -> None:
    """Red when a request is lost between workload, world and report, or a block of the trace is not shared."""
    out = tmp_path / "out.json"
    limits = ["--slo-ttft-ms", "60000", "--slo-tpot-ms", "60000", "--price-per-h", "2"]
    result = simulate(*trace, *model, *limits, "--topology", "1p1d", "--topology", "2u,price=3", "--json", str(out))
    assert result.exit_code == 0, result.exception
    for words in ("trace.jsonl", "TTFT", "1p1d", "2u,price=3", "blocks of 512", "cost per hour", "of bandwidth"):
        assert words in result.output
    body = json.loads(out.read_text())
    assert body["workload"]["num_requests"] == 30
    assert body["workload"]["offered_hit_fraction"] == pytest.approx(29 * 512 / sum(1000 + i for i in range(30)))
    split, unified = body["configurations"]
    for report in (split, unified):
        assert report["outcomes"] == {"finished": 30}
        assert report["num_output_tokens"] == sum(8 + i % 5 for i in range(30))
        assert report["latencies"]["ttft_s"]["p50"] > 0
        assert report["latencies"]["ttft_s"]["untold"]["p99"] == "needs 1,000 samples, there are 30"
        assert report["goodput"]["num_met"] == 30
    assert split["goodput"]["limits"] == {"ttft_s": 60.0, "itl_s": None, "tpot_s": 60.0}
    assert (split["cost"]["per_h"], unified["cost"]["per_h"]) == (4.0, 6.0)
    assert [pool["role"] for pool in split["pools"]] == ["prefill", "decode"]
    assert split["kv_transfer_bytes"] > 0
    assert unified["kv_transfer_bytes"] == 0
    assert unified["hit_fraction"] > 0.2


def test_the_same_options_give_the_same_bytes(tmp_path: Path, model: list[str], trace: list[str]) -> None:
    """Red when a clock of this machine, an object's address or an unseeded draw gets into a result."""
    written = []
    for name in ("one", "two"):
        out, log = tmp_path / f"{name}.json", tmp_path / f"{name}.log"
        options = ["--arrival", "poisson", "--rate", "5", "--seed", "3", "--json", str(out), "--decision-log", str(log)]
        assert simulate(*trace, *model, *options).exit_code == 0
        written.append((out.read_bytes(), log.read_bytes()))
    assert written[0] == written[1]
    assert b'"decision":"arrive"' in written[0][1]


def test_a_slow_host_changes_no_byte(
    tmp_path: Path, model: list[str], trace: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every clock of the machine goes on by ten minutes at each look, as on a host that is far slower. Red when
    simulated time, or a decision, depends on the time that simulating takes."""
    written, looks = [], count(1)
    for name in ("quick", "slow"):
        out, log = tmp_path / f"{name}.json", tmp_path / f"{name}.log"
        assert simulate(*trace, *model, "--json", str(out), "--decision-log", str(log)).exit_code == 0
        written.append((out.read_bytes(), log.read_bytes()))
        for clock in ("time", "monotonic", "perf_counter", "process_time"):
            monkeypatch.setattr(time, clock, lambda: 600.0 * next(looks))
            monkeypatch.setattr(time, f"{clock}_ns", lambda: 600_000_000_000 * next(looks))
    assert written[0] == written[1]


def test_jumps_change_no_byte(tmp_path: Path, model: list[str]) -> None:
    """Red when a number or a decision depends on how many quiet steps were taken at once."""
    load = ["--prompt-tokens", "200-900", "--output-tokens", "100", "--rate", "4", "--num-requests", "20"]
    written = []
    for jumps in ("--jumps", "--no-jumps"):
        out, log = tmp_path / f"{jumps}.json", tmp_path / f"{jumps}.log"
        assert simulate(*load, *model, jumps, "--json", str(out), "--decision-log", str(log)).exit_code == 0
        written.append((out.read_bytes(), log.read_bytes()))
    assert written[0] == written[1]


def test_each_configuration_has_a_decision_log(tmp_path: Path, model: list[str], trace: list[str]) -> None:
    log = tmp_path / "decisions.log"
    topologies = ["--topology", "1p1d", "--topology", "1u"]
    assert simulate(*trace, *model, *topologies, "--num-requests", "5", "--decision-log", str(log)).exit_code == 0
    assert {path.name for path in tmp_path.glob("*.log")} == {"decisions-1p1d.log", "decisions-1u.log"}


def test_sessions_are_made_up(tmp_path: Path, model: list[str]) -> None:
    """Three turns a session, of which each repeats the one before. Red when a turn does not wait for its answer."""
    out = tmp_path / "out.json"
    shape = ["--prompt-tokens", "64", "--output-tokens", "8", "--turns", "3", "--system-tokens", "160"]
    options = ["--rate", "2", "--num-requests", "30", "--mean-gap-s", "1", "--topology", "unified", "--json", str(out)]
    result = simulate(*shape, *model, *options)
    assert result.exit_code == 0, result.exception
    assert "30 in 10 sessions" in result.output
    report = json.loads(out.read_text())["configurations"][0]
    assert report["outcomes"] == {"finished": 30}
    assert report["hit_fraction"] > 0.5


def test_measured_step_costs_need_no_model(tmp_path: Path, trace: list[str]) -> None:
    metrics = tmp_path / "metrics.txt"
    metrics.write_text(
        "# TYPE relevo:step_cost_seconds gauge\n"
        'relevo:step_cost_seconds{worker="unified-0",per="step"} 0.01\n'
        'relevo:step_cost_seconds{worker="unified-0",per="token"} 1e-5\n'
        'relevo:step_cost_seconds{worker="unified-0",per="kv_token"} 1e-8\n'
    )
    options = ["--step-costs", str(metrics), "--topology", "unified", "--kv-bytes-per-token", "1000"]
    assert "give --num-kv-blocks" in refused(*trace, *options)
    result = simulate(*trace, *options, "--num-kv-blocks", "1000")
    assert result.exit_code == 0, result.exception
    assert "10.0" in result.output  # a decode step


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ([], "give --trace FILE, or --rate with --prompt-tokens"),
        (["--prompt-tokens", "10"], "there are no arrival times; give a rate"),
        (["--prompt-tokens", "x", "--rate", "1"], "'x' is not a length"),
        (["--prompt-tokens", "10", "--rate", "1"], "give --model and --device, or --step-costs FILE"),
        (["--prompt-tokens", "10", "--rate", "1", "--model", "nothing"], "no file or folder, and no hub id"),
        (["--prompt-tokens", "10", "--rate", "1", "--duration-s", "0"], "no request is left to send"),
        (["--prompt-tokens", "10", "--rate", "1", "--step-costs", "nothing"], "cannot read --step-costs nothing"),
        (["--trace", "nothing"], "cannot read the trace nothing"),
        (["--topology", "0p1d"], "has no prefill worker"),
        (["--topology", "0u"], "write 1u to 512u"),
        (["--topology", "1p1d,color=red"], "'color=red' is no setting; write NAME=VALUE"),
        (["--topology", "1p1d,driver.tp=2"], "a role of prefill, decode, unified"),
        (["--topology", "1p1d,tp=0"], "tp is '0'; give a whole number above 0"),
        (["--topology", "1u,decode.tp=2"], "there is no decode worker for 'decode.tp=2'; there are unified"),
        (["--topology", "1u", "--topology", "1u"], "1u is given twice; give each configuration once"),
        (["--topology", "1p1d,decode.price=2"], "prefill workers have no price and the others have one"),
        (["--topology", "1p1d,price=nan"], "price is 'nan'; give a number above 0"),
    ],
)
def test_mistakes_are_one_sentence_with_the_fix(options: list[str], sentence: str) -> None:
    assert sentence in refused(*options)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--device", "abacus"], "no figures of device 'abacus'; known are a100"),
        (["--device", ""], "names no device; give --device"),
        (["--num-kv-blocks", "1"], "holds 512 tokens and the longest request has"),
        (["--num-kv-blocks", "99999999999"], "99,999,999,999 blocks, and at most 16,777,216 are simulated"),
        (["--memory-utilization", "0.05"], "of weights on each of 1 l40s of a prefill worker, which have"),
        (["--decision-log", "/nowhere/log"], "cannot write --decision-log /nowhere/log"),
        (["--json", "/nowhere/out"], "cannot write --json /nowhere/out"),
    ],
)
def test_what_cannot_run_is_refused(model: list[str], trace: list[str], options: list[str], sentence: str) -> None:
    assert sentence in refused(*trace, "--num-requests", "2", *model, *options)


@pytest.mark.parametrize(
    "option",
    [
        "--rate=inf",
        "--until-s=nan",
        "--link-gb-s=0",
        "--price-per-h=-1",
        "--warm-up-s=nan",
        "--drain-s=inf",
        "--slo-ttft-ms=-1",
        "--num-gateways=1000",
        "--system-prompts=1000000000",
        f"--seed={2**200}",
    ],
)
def test_numbers_that_mean_nothing_are_refused(model: list[str], trace: list[str], option: str) -> None:
    result = simulate(*trace, "--num-requests", "2", *model, option)
    assert (result.exit_code, option.split("=")[0] in result.output) == (2, True), result.exception


def test_models_that_only_keep_windows(tmp_path: Path, trace: list[str]) -> None:
    """Red when Mistral 7B divides the memory that is left by the nothing that a token adds to its windows."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG | {"model_type": "mistral", "sliding_window": 4096}))
    options = [*trace, "--num-requests", "2", "--model", str(path), "--device", "l40s"]
    assert "give --kv-bytes-per-token and --num-kv-blocks" in refused(*options)
    options += ["--kv-bytes-per-token", "1000"]
    assert "give --num-kv-blocks" in refused(*options)
    assert simulate(*options, "--num-kv-blocks", "1000").exit_code == 0


@pytest.mark.parametrize(
    "content",
    [
        "{" * 100_000,
        '{"a": ' * 100_000,
        '{"prefill": [], "decode": []}',
        '{"prefill": [{"prompt_len": 1, "num_steps": 0, "tokens_per_s": {"median": 1}}], "decode": []}',
        '{"prefill": [], "decode": [{"batch_size": 1.5, "context": 1, "step_s": {"median": 1}}]}',
        'relevo:step_cost_seconds{worker="w",per="step"} 1\n',
        "".join(f'relevo:step_cost_seconds{{worker="w",per="{per}"}} NaN\n' for per in ("step", "token", "kv_token")),
        "".join(f'relevo:step_cost_seconds{{worker="w",per="{per}"}} -1\n' for per in ("step", "token", "kv_token")),
    ],
)
def test_step_costs_that_are_none(tmp_path: Path, trace: list[str], content: str) -> None:
    """Red when costs make virtual time stand still or run back, or a wrong file is a traceback."""
    path = tmp_path / "costs"
    path.write_text("# TYPE relevo:step_cost_seconds gauge\n" * content.startswith("relevo") + content)
    options = ["--kv-bytes-per-token", "1000", "--num-kv-blocks", "1000", "--topology", "1u"]
    assert "--step-costs" in refused(*trace, "--step-costs", str(path), *options)


def test_files_without_end_are_not_read_whole(trace: list[str]) -> None:
    assert "more than 67,108,864 bytes" in refused(*trace, "--step-costs", "/dev/zero")


def test_long_requests_can_be_left_out(tmp_path: Path, model: list[str], trace: list[str]) -> None:
    result = simulate(*trace, *model, "--max-request-tokens", "1020", "--topology", "unified")
    assert result.exit_code == 0, result.exception
    assert "requests of more than 1,020 tokens are left out" in result.output


def test_an_engine_brings_its_constants_and_its_floor(tmp_path: Path, model: list[str], trace: list[str]) -> None:
    """Red when the time that an engine takes outside its steps is missing from TTFT, or counted per token."""
    reports = []
    for engine in ([], ["--engine", "vllm"]):
        out = tmp_path / "out.json"
        options = [*model, "--device", "h100", "--topology", "unified", "--num-requests", "2", "--json", str(out)]
        assert simulate(*trace, *options, *engine).exit_code == 0
        reports.append(json.loads(out.read_text())["configurations"][0])
    plain, vllm = reports
    floor_s = vllm["machines"]["front_end_s"]
    assert (plain["machines"]["front_end_s"], floor_s > 0.0) == (0.0, True)
    assert vllm["latencies"]["ttft_s"]["mean"] > floor_s
    assert vllm["latencies"]["tpot_s"]["mean"] < floor_s
    refusal = refused(*trace, *model, "--engine", "vllm", "--device", "h20", "--topology", "unified")
    assert "no measured constants of vllm on h20" in refusal


def test_unequal_configurations_are_called_so(model: list[str], trace: list[str]) -> None:
    topologies = ["--topology", "1p1d", "--topology", "unified", "--num-requests", "2"]
    assert "configurations of 1 to 2 devices" in simulate(*trace, *model, *topologies).output


def test_roles_may_differ(tmp_path: Path, model: list[str], trace: list[str]) -> None:
    out = tmp_path / "out.json"
    text = "2p1d,prefill.device=h100,decode.tp=2,decode.price=1"
    assert simulate(*trace, *model, "--topology", text, "--price-per-h", "5", "--json", str(out)).exit_code == 0
    report = json.loads(out.read_text())["configurations"][0]
    assert [(pool["role"], pool["num_devices"]) for pool in report["pools"]] == [("prefill", 2), ("decode", 2)]
    assert report["cost"]["per_h"] == 2 * 5 + 2 * 1
    prefill, decode = report["machines"]["pools"]
    assert (prefill["device"], decode["device"], decode["tp"]) == ("h100", "l40s", 2)
    assert report["machines"]["kv_bytes_per_token"] == 16 * 2 * 8 * 64 * 2
    assert prefill["kv_blocks"] > 1000


def test_a_page_has_a_curve_per_configuration_and_every_request(
    tmp_path: Path, model: list[str], trace: list[str]
) -> None:
    out = tmp_path / "sim.html"
    options = ["--num-requests", "5", "--topology", "1p1d", "--topology", "1u"]
    plain, told = simulate(*trace, *model, *options), simulate(*trace, *model, *options, "--report", str(out))
    assert told.exit_code == 0, told.output
    assert told.stdout == plain.stdout, "the report changes nothing of what is printed"
    page, data = out.read_text(), json.loads(read_data(out))
    assert "Simulation of trace.jsonl on 1p1d, 1u" in page and "TTFT over time, 1u" in page
    assert "Use of the workers" in page and "Partial" not in page
    assert [len(columns["ttft_s"]) for columns in data["requests"].values()] == [5, 5]
    assert [each["label"] for each in data["configurations"]] == ["1p1d", "1u"]


def test_an_interrupted_simulation_keeps_the_configurations_that_ended(
    tmp_path: Path, model: list[str], trace: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C in the second of three. Red when the first is lost, or the page does not say what is missing."""
    from relevo.build import simulate as built

    real = built._run_world

    def run_world(world: Any, label: str, *others: Any) -> Any:
        if label == "1u":
            raise KeyboardInterrupt
        return real(world, label, *others)

    monkeypatch.setattr(built, "_run_world", run_world)
    out = tmp_path / "sim.html"
    topologies = ["--topology", "1p1d", "--topology", "1u", "--topology", "2u"]
    assert simulate(*trace, *model, *topologies, "--num-requests", "5", "--report", str(out)).exit_code == 130
    assert "Partial: it was interrupted; not simulated to the end: 1u, 2u" in out.read_text()
    assert [each["label"] for each in json.loads(read_data(out))["configurations"]] == ["1p1d"]


def test_a_world_that_is_stopped_leaves_requests_unfinished(tmp_path: Path, model: list[str], trace: list[str]) -> None:
    """Twelve seconds of arrivals, stopped after six. Red when what was not answered counts as fast."""
    out = tmp_path / "out.json"
    options = ["--until-s", "6", "--topology", "unified", "--json", str(out)]
    assert simulate(*trace, *model, *options).exit_code == 0
    report = json.loads(out.read_text())["configurations"][0]
    assert report["num_arrivals"] == 16
    assert report["outcomes"]["unfinished"] >= 1
    assert report["latencies"]["e2e_s"]["num_missing"] == report["outcomes"]["unfinished"]
    assert report["notes"][0].startswith("14 requests were never sent: the world was stopped before")
