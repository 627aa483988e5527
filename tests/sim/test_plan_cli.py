"""`relevo plan` as a person types it: tables, JSON, commands, the same bytes twice, and one sentence for a mistake."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from relevo.build.ledger import open_prepared
from relevo.build.plan_options import PlanOptions, parse_rate, parse_seconds, parse_workload, warm_requests
from relevo.cli.plan import plan as command
from relevo.core.errors import RelevoError, SettingsError
from relevo.gateway.metering.ledger import LedgerRow, put_rows
from relevo.policy.scaling.candidates import Assumptions
from relevo.policy.scaling.screen import Targets
from relevo.sim.planned_load import demand_of, opened, piece_of
from relevo.workload.requests import WorkloadRequest

CONFIG = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128_256,
}
LOAD = ("--workload", "1500,40,20/s,40%", "--simulated-requests", "130", "--mean-gap-s", "2")


def planned(*arguments: str) -> Result:
    app = typer.Typer()
    app.command()(command)
    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": "200"})


def refused(*arguments: str) -> str:
    error = planned(*arguments).exception
    assert isinstance(error, RelevoError), error
    return error.message


@pytest.fixture
def asked(tmp_path: Path) -> list[str]:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG))
    promise = ["--slo-ttft-p90", "1s", "--slo-itl-p90", "30ms"]
    return ["--model", str(path), "--devices", "8xH100@3/h", "--engine", "vllm", *promise]


def read(path: Path) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(path.read_text())
    return parsed


def test_a_plan_is_told_whole_and_the_same_each_time(tmp_path: Path, asked: list[str]) -> None:
    """Red when a figure of the answer is missing, a clock or a hash seed has a part in it, or a command is not made."""
    paths = [tmp_path / "first.json", tmp_path / "second.json"]
    results = [planned(*asked, *LOAD, "--json", str(path)) for path in paths]
    assert [result.exit_code for result in results] == [0, 0], results[0].output
    assert paths[0].read_bytes() == paths[1].read_bytes()
    told = read(paths[0])
    best = told["plans"][0]
    assert told["is_enough"] and best["keeps_margin"] and best["why_not"] == ""
    assert best["cost_per_h"] == 3.0 * best["num_devices"] > 0
    tokens_per_h = (
        told["demand"]["requests_per_s"]
        * 3600
        * (told["demand"]["mean_prompt_tokens"] + told["demand"]["mean_output_tokens"])
    )
    assert best["cost_per_million_tokens"] == pytest.approx(best["cost_per_h"] / tokens_per_h * 1e6)
    assert all(row["why_not"] for row in told["plans"][1:])
    assert {row["is_split"] for row in told["plans"]} == {True, False}, "both ways are always told"
    assert best["simulated"]["ttft_s_p90"] <= 1.0 and best["with_1.5_times_the_load"]["num_requests"] > 100
    assert told["error_band"].startswith("error band, rung") and set(told["commands"]) == {"relevo", "vllm", "sglang"}
    for word in (
        "falls at",
        "why not",
        "error band",
        "vllm serve",
        "sglang.launch_server",
        "relevo serve",
        "head-room",
        "full by the screen",
        "first to fall",
    ):
        assert word in results[0].output, word


@pytest.mark.slow
def test_what_cannot_be_kept_is_an_answer_with_its_own_exit_status(tmp_path: Path, asked: list[str]) -> None:
    """Red when an impossible promise, or too few devices, ends like a plan that holds."""
    asked[asked.index("8xH100@3/h")] = "4xH100@3/h"
    promise = asked.index("--slo-ttft-p90") + 1
    impossible = planned(*asked[:promise], "1ms", *asked[promise + 1 :], *LOAD)
    assert impossible.exit_code == 1 and "infeasible SLO" in impossible.output and "at best" in impossible.output
    path = tmp_path / "short.json"
    short = planned(*asked, *LOAD, "--rate", "300/s", "--json", str(path))
    assert short.exit_code == 1 and "not enough" in short.output
    assert not read(path)["is_enough"]


def test_a_version_that_is_none_is_one_sentence(asked: list[str]) -> None:
    assert "'latest' is no version of an engine; write it as 0.19.0" in refused(
        *asked, *LOAD, "--engine-version", "latest"
    )
    without = [word for word in asked if word not in ("--engine", "vllm")]
    assert "--engine-version 0.19.0 is of no --engine" in refused(*without, *LOAD, "--engine-version", "0.19.0")


@pytest.mark.parametrize(
    ("changed", "word"),
    [
        (("--slo-ttft-p90", "2"), "write its unit: 2s or 2ms"),
        (("--rate", "5"), "write its unit: 5/s, /min or /h"),
        (("--workload", "4000,300,5,60%"), "--workload rate: '5' is no rate"),
        (("--workload", "4000,300,5/s"), "has 3 parts"),
        (("--workload", "4000,300,5/s,0.6"), "no share; write 0% to 99%"),
        (("--workload", "many,300,5/s,6%"), "no number of prompt tokens"),
        (("--devices", "8xH10"), "did you mean h100"),
        (("--devices", "1xRTX4090", "--memory-utilization", "0.5"), "GiB missing"),
        (("--engine", "vlm"), "there are sglang, trtllm, vllm"),
        (("--model", "no-such"), "give a config.json"),
        (("--trace", "a", "--ledger", "3"), "one of --trace FILE"),
        (("--draft-tokens", "1", "--tokens-per-step", "3"), "cannot come of 1 drafted"),
    ],
)
def test_a_mistake_is_one_sentence(asked: list[str], changed: tuple[str, ...], word: str) -> None:
    """Red when a number without its unit, a typo or an impossible model is taken, or ends in a traceback."""
    import re

    message = refused(*asked, *LOAD, *changed)
    assert re.search(word, message), message


def test_units_are_read() -> None:
    assert parse_rate("300/min", "--rate") == pytest.approx(5.0) and parse_rate("18000/h", "--rate") == pytest.approx(
        5.0
    )
    assert parse_seconds("500ms", "--slo") == 0.5 and parse_seconds("2s", "--slo") == 2.0
    for text in ("-1/s", "1e9/s", "0/s", "nan/s", "5/d"):
        with pytest.raises(SettingsError):
            parse_rate(text, "--rate")


@pytest.mark.parametrize(
    ("text", "reuse"), [("4000,300,5/s,0%", 0.0), ("20000,200,2/s,60%", 0.6), ("30000,200,2/s,80%", 0.8)]
)
def test_made_up_sessions_have_the_lengths_and_the_reuse_that_were_asked_for(text: str, reuse: float) -> None:
    """Red when the share of repeated beginnings is only claimed: it must be in the hash chains."""
    from itertools import islice
    from random import Random

    from relevo.sim.reuse import offered_fraction
    from relevo.workload.generated import generate

    made = parse_workload(text, 5.0)
    rows = list(islice(generate(made.sessions, Random(1), 64), 3000))
    mean = sum(row.num_prompt_tokens for row in rows) / len(rows)
    asked_for = [float(part) for part in text.split(",")[:2]]
    assert mean == pytest.approx(asked_for[0], rel=0.08)
    assert sum(row.num_output_tokens for row in rows) / len(rows) == pytest.approx(asked_for[1], rel=0.08)
    assert offered_fraction(rows) == pytest.approx(reuse, abs=0.06)


def chats(number: int) -> list[WorkloadRequest]:
    """Two turns each, the second of which repeats the first and waits for its answer."""
    return [
        WorkloadRequest(
            row=row,
            num_prompt_tokens=640 * (1 + row % 2),
            num_output_tokens=10,
            arrived_at_s=None if row % 2 else row / 2,
            gap_s=3.0 if row % 2 else None,
            parent=row - 1 if row % 2 else None,
            hash_ids=[100 * (row // 2) + i for i in range(10 * (1 + row % 2))],
            hash_block_size=64,
        )
        for row in range(number)
    ]


def test_a_demand_counts_hits_by_the_size_of_a_cache_and_gives_every_turn_a_time() -> None:
    """Red when a request that waits for an answer has no place in the rate, or hits are a given number."""
    requests = opened(chats(200), Targets(ttft_s=1.0, itl_s=0.1))
    assert all(not request.is_closed_loop and request.arrived_at_s is not None for request in requests)
    second = next(request for request in requests if request.row == 1)
    assert second.arrived_at_s == pytest.approx(0.0 + 1.0 + 10 * 0.1 + 3.0)
    demand = demand_of(requests, 5.0)
    assert demand.requests_per_s == 5.0 and demand.cache_sizes[0] == 0
    assert demand.hit_fraction(0) == 0.0
    assert demand.hit_fraction(len(demand.cache_sizes) - 1) == pytest.approx(1 / 3, abs=0.02)


def test_a_piece_is_warmed_by_what_came_before_it_and_counts_none_of_that() -> None:
    """Red when the first requests of a simulation meet cold caches and are told as its latency."""
    requests = opened(chats(1000), Targets(ttft_s=1.0, itl_s=0.1))
    piece = piece_of(requests, 200, 100)
    timed, warm_s = piece.at(10.0)
    assert len(timed.requests) == 300 and warm_s == pytest.approx(10.0, rel=0.3)
    heads, counted = timed.requests[:100], timed.requests[100:]
    assert {request.num_output_tokens for request in heads} == {1} and {r.num_output_tokens for r in counted} == {10}
    assert piece_of(requests[:50], 200, 100).num_warm == 0, "a short workload counts whole"


def test_caches_are_warmed_for_the_life_of_a_session() -> None:
    """Red when long sessions meet caches that are colder than they would be: the split would be sized for misses."""

    def asked(workload: str, num_warm: int | None = None) -> PlanOptions:
        return PlanOptions(
            model="m",
            holdings=(),
            targets=Targets(ttft_s=3.0, itl_s=0.04),
            assumed=Assumptions(),
            made_up=parse_workload(workload, 5.0),
            num_warm=num_warm,
        )

    assert warm_requests(asked("28400,200,6/s,80%")) == round(6 * 9 * (5 + 3 + 200 * 0.04))
    assert warm_requests(asked("28400,200,6/s,0%")) == 300
    assert warm_requests(asked("28400,200,6/s,80%", 20)) == 20
    assert warm_requests(asked("28400,200,600/s,80%")) == 1500


def test_the_ledgers_busiest_hour_is_planned_for(tmp_path: Path, asked: list[str]) -> None:
    """Red when the mean of a day is planned for, a text is needed, or requests that failed are no load."""
    now_ms = int(time.time() * 1000)
    rows = [_row(index, now_ms - 7_200_000 + 100 * index, 1200, "finished") for index in range(400)]
    rows += [_row(400 + index, now_ms - 60_000 * (index + 1), 900, "failed") for index in range(5)]
    connection = open_prepared(str(tmp_path / "relevo.db"))
    connection.write([put_rows(rows)])
    connection.close()
    path = tmp_path / "plan.json"
    where = ("--data-dir", str(tmp_path), "--simulated-requests", "130")
    result = planned(*asked, "--ledger", "1", *where, "--json", str(path))
    assert result.exit_code == 0, result.output
    told = read(path)
    assert told["demand"]["requests_per_s"] == pytest.approx(10.0, rel=0.05)
    assert told["demand"]["mean_prompt_tokens"] == pytest.approx(1200)
    assert "no hash chains" in " ".join(told["workload"]["notes"])
    assert "no request of other of the last" in refused(*asked, "--ledger", "1", *where, "--ledger-model", "other")


def _row(index: int, started_at_ms: int, prompt_tokens: int, outcome: str) -> LedgerRow:
    return LedgerRow(
        request_id=f"r{index}",
        response_id=f"c{index}",
        key_id="",
        tenant="t",
        model="m",
        outcome=outcome,
        prompt_tokens=prompt_tokens,
        cached_tokens=prompt_tokens // 2,
        completion_tokens=30,
        unbilled_prompt_tokens=0,
        unbilled_completion_tokens=0,
        input_cost_per_token="0",
        cache_read_input_token_cost="0",
        output_cost_per_token="0",
        cost="0",
        started_at_ms=started_at_ms,
        ended_at_ms=started_at_ms + 900,
    )
