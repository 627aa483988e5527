"""`relevo simulate --ledger` as a person types it: what was served first, then other ways, one sentence for a mistake.

The traffic is a simulated server's own: what came of each request is written as a gateway writes it, so the baseline
has to come out as it was.
"""

from __future__ import annotations

import json
import time
from array import array
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from relevo import __version__
from relevo.build.ledger import open_prepared
from relevo.build.served_history import HistoryAsk, last_costs, read_history
from relevo.build.served_workers import as_served, served_workers
from relevo.cli.simulate import simulate as command
from relevo.core.errors import RelevoError
from relevo.gateway.metering.ledger import LedgerRow, put_rows
from relevo.sim.world import World
from relevo.workload.requests import Workload
from relevo.workload.traces.rows import Tally
from relevo.workload.traces.served import Replay, ServedRequest, ServingNote

NUM_REQUESTS = 60
FACTS = {
    "server": "s",
    "release": __version__,
    "names": ["m", "alias"],
    "model_hash": "h",
    "max_model_len": 4096,
    "kv_bytes_per_token": 1024,
    "enable_prefix_caching": True,
    "workers": [
        {
            "worker": f"{role}-0",
            "role": role,
            "box": "box",
            "cores": [core],
            "own_costs": [0.004, 0.0004, 1e-7],
            "costs": {"1": [0.004, 0.0004, 1e-7], "2": [0.003, 0.0002, 1e-7]},
            "num_blocks": 600,
            "block_size": 16,
            "batched_tokens": 512,
            "prefill_tokens": 512,
            "running": 16,
            "itl_target_s": 0.1,
        }
        for core, role in enumerate(("prefill", "decode"))
    ],
}


def requests(model: str = "m") -> list[ServedRequest]:
    """Chats of up to three turns over four system prompts, an hour ago."""
    start_s = time.time() - 3600.0
    found = []
    for row in range(NUM_REQUESTS):
        chat, turn = row % 20, row // 20
        prompt = 160 + 96 * turn
        blocks = [chat % 4, *(1000 * (chat + 1) + place for place in range(1, (prompt + 40) // 16))]
        found.append(
            ServedRequest(
                at_s=start_s + 0.11 * row,
                model=model,
                num_prompt_tokens=prompt,
                num_cached_tokens=0,
                num_output_tokens=40,
                front_s=0.001,
                block_size=16,
                chain=array("q", blocks),
            )
        )
    return found


def measured(asked: list[ServedRequest], note: ServingNote) -> list[ServedRequest]:
    """With what came of it on those workers."""
    replay = Replay(Tally())
    first_s = asked[0].at_s
    rows = [replace(replay.request(each), arrived_at_s=each.at_s - first_s) for each in asked]
    config = replace(as_served(served_workers(note), 1000), front_end_s=0.001)
    results = {result.row: result for result in World(config, Workload(requests=rows)).run().requests}
    return [
        replace(
            each,
            num_cached_tokens=results[row].num_cached_tokens,
            ttft_s=results[row].times.ttft_s,
            e2e_s=results[row].times.e2e_s,
        )
        for row, each in enumerate(asked)
    ]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A server's data folder."""
    asked = requests()
    note = ServingNote(at_s=asked[0].at_s - 10.0, model="m", facts=FACTS)
    (tmp_path / "traffic").mkdir()
    rows = [note, *measured(asked, note)]
    text = "".join(json.dumps(row.to_row()) + "\n" for row in rows)
    (tmp_path / "traffic" / "traffic-1.jsonl").write_text(text + '{"kind":"request","at_s":1')
    open_prepared(str(tmp_path / "relevo.db")).close()
    return tmp_path


def keep(folder: Path, asked: list[ServedRequest]) -> None:
    """In the ledger."""
    connection = open_prepared(str(folder / "relevo.db"))
    rows = [
        LedgerRow(
            request_id=f"{each.model}{index}",
            response_id=f"c{index}",
            key_id="k",
            tenant="t",
            model=each.model,
            outcome="finished",
            prompt_tokens=each.num_prompt_tokens,
            cached_tokens=each.num_prompt_tokens // 2,
            completion_tokens=each.num_output_tokens,
            unbilled_prompt_tokens=0,
            unbilled_completion_tokens=0,
            input_cost_per_token="0",
            cache_read_input_token_cost="0",
            output_cost_per_token="0",
            cost="0",
            started_at_ms=round(each.at_s * 1e3),
            ended_at_ms=round(each.at_s * 1e3) + 900,
        )
        for index, each in enumerate(asked)
    ]
    connection.write([put_rows(rows)])
    connection.close()


def simulate(*arguments: str) -> Result:
    app = typer.Typer()
    app.command()(command)
    return CliRunner().invoke(app, ["--ledger", *arguments], env={"COLUMNS": "200"})


def refused(*arguments: str) -> str:
    error = simulate(*arguments).exception
    assert isinstance(error, RelevoError), error
    return error.message


def told(folder: Path, *arguments: str) -> dict[str, Any]:
    path = folder / "out.json"
    result = simulate("--data-dir", str(folder), "--json", str(path), *arguments)
    assert result.exit_code == 0, (result.output, result.exception)
    parsed: dict[str, Any] = json.loads(path.read_text())
    return parsed


def test_what_served_comes_out_as_it_was_and_other_ways_stand_beside_it(folder: Path) -> None:
    """Red when hits do not come from the chains, the baseline differs from what was measured, or costs of another
    number of cores are not those that were measured on it."""
    found = told(folder)
    errors = found["as_served"]["errors"]
    assert errors["hit_fraction_points"] == pytest.approx(0.0, abs=1e-9)
    assert found["as_served"]["measured"]["hit_fraction"] > 0.2
    assert abs(errors["ttft_s_p50"]) < 1e-4 and abs(errors["e2e_s_p50"]) < 1e-4
    labels = [configuration["label"] for configuration in found["configurations"]]
    assert labels == ["as served: 1p1d", "unified", "hybrid"]
    assert {configuration["num_devices"] for configuration in found["configurations"]} == {2}
    assert "1 lines of the traffic log cannot be read" in " ".join(found["workload"]["notes"])
    said = simulate("--data-dir", str(folder), "--topology", "unified").output
    assert "As served (1p1d): measured, and simulated with the same workers" in said and "points" in said


def test_a_smaller_cache_hits_less_and_a_bound_can_be_changed_alone(folder: Path) -> None:
    found = told(folder, "--num-kv-blocks", "40")
    assert [each["label"] for each in found["configurations"]] == ["as served: 1p1d", "1p1d"]
    as_served_, small = found["configurations"]
    assert small["hit_fraction"] < as_served_["hit_fraction"] and small["machines"]["pools"][0]["kv_blocks"] == 40
    found = told(folder, "--topology", "2h,prefill_tokens=64", "--itl-target-ms", "20", "--num-requests", "30")
    assert found["workload"]["num_requests"] == 30 and found["as_served"]["measured"]["num_requests"] == 30
    assert "as_served" not in told(folder, "--speed", "2"), "at other times nothing was measured"


def test_mistakes_are_one_sentence(folder: Path) -> None:
    where = ("--data-dir", str(folder))
    assert "leave --trace and --prompt-tokens out" in refused(*where, "--trace", "x")
    assert "names devices" in refused(*where, "--topology", "unified,device=h100")
    assert "holds 96 tokens and the longest request has" in refused(*where, "--num-kv-blocks", "6")
    assert "only 2 cores" in refused(*where, "--topology", "2p2d")
    assert "no request of other of the last day" in refused(*where, "--ledger-model", "other")
    assert "memory lives inside a server" in refused("--database-url", "memory")
    assert "is neither `memory` nor a URL" in refused("--database-url", "nonsense")
    assert "no request of the last day" in refused("--data-dir", str(folder / "other"))


def test_without_a_traffic_log_lengths_count_and_it_is_said(tmp_path: Path) -> None:
    """Red when measured hits are used and not named, or a step's time is made up."""
    few = requests()[:5]
    keep(tmp_path, few)
    where = ("--data-dir", str(tmp_path))
    assert "has 5 requests of the last day, and at least 20 are needed" in refused(*where)
    keep(tmp_path, requests())
    assert "nothing says how long a step takes: the traffic log has no note" in refused(*where)
    (tmp_path / "config.json").write_text(
        json.dumps(
            {
                "model_type": "llama",
                "hidden_size": 64,
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
                "num_key_value_heads": 4,
                "intermediate_size": 128,
                "vocab_size": 100,
            }
        )
    )
    found = told(tmp_path, "--model", str(tmp_path / "config.json"), "--device", "h100", "--topology", "unified")
    notes = " ".join(found["workload"]["notes"])
    assert "50% of its prompt tokens were cached; the ledger keeps no hash chains, so hits are taken from it" in notes
    assert 0.3 < found["configurations"][0]["hit_fraction"] < 0.52
    keep(tmp_path, requests("other"))
    assert "has requests for 2 models of the last day: other (60), m (60)" in refused(*where) or "m (60), other" in (
        refused(*where)
    )


def test_names_of_one_model_are_one_model(folder: Path) -> None:
    """Red when an alias makes two models of one, or the log hides what only the ledger has."""
    path = folder / "traffic" / "traffic-2.jsonl"
    path.write_text("".join(json.dumps(each.to_row()) + "\n" for each in requests("alias")))
    keep(folder, [*requests(), *requests("alias"), *[replace(each, at_s=each.at_s - 60.0) for each in requests("a")]])
    connection = open_prepared(str(folder / "relevo.db"))
    ask = HistoryAsk(days=1, folder=folder / "traffic", model="alias", now_ms=int(time.time() * 1e3))
    history = read_history(ask, connection)
    assert len(history.requests) == 2 * NUM_REQUESTS and history.has_chains and history.source == "traffic log"
    assert "2 models" in refused("--data-dir", str(folder))
    assert {n: b for n, b, *_ in last_costs(folder / "traffic", "h")} == {1: 0.004, 2: 0.003}
    assert last_costs(folder / "traffic", "another model") == ()


def test_what_another_release_measured_of_its_steps_is_not_believed(folder: Path) -> None:
    """Red when a planner starts from the step costs that a server had before it was upgraded."""
    assert last_costs(folder / "traffic", "h")
    for facts in ({**FACTS, "release": "0.0.1"}, {key: value for key, value in FACTS.items() if key != "release"}):
        (path,) = (folder / "traffic").glob("*.jsonl")
        path.write_text(json.dumps(ServingNote(at_s=time.time(), model="m", facts=facts).to_row()) + "\n")
        assert last_costs(folder / "traffic", "h") == ()
