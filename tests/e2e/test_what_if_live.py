"""What a live server keeps is what `relevo simulate --ledger` replays and `--topology auto` starts from; and what
`relevo plan` prints is a command that starts."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import pytest
from stack import Stack, stack

FLAGS = ("--num-kv-blocks", "256", "--max-model-len", "2048", "--fake-base-s", "0.004", "--fake-per-token-s", "0.0002")
SMOLLM2 = {
    "model_type": "llama",
    "hidden_size": 576,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "intermediate_size": 1536,
    "vocab_size": 49152,
    "tie_word_embeddings": True,
    "max_position_embeddings": 8192,
}


def relevo(*arguments: str, status: int = 0) -> str:
    done = subprocess.run([sys.executable, "-m", "relevo", *arguments], capture_output=True, text=True, timeout=280)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout + done.stderr


def chat(server: Stack, number: int) -> None:
    """Three turns, of which each goes on from the answer before it."""
    rng = Random(number)
    prompt = [*range(10 + number % 3, 170 + number % 3), *(rng.randrange(250) for _ in range(40))]
    for turn in range(3):
        answer = server.complete(prompt, max_tokens=20, ignore_eos=True, return_token_ids=True)["choices"][0]
        prompt = [*prompt, *answer["token_ids"], *(rng.randrange(250) for _ in range(30 + turn))]


def test_traffic_of_a_hybrid_server_comes_back_and_auto_starts_from_it(tmp_path: Path) -> None:
    """Red when the chains of a live server are not those of its caches, or a start does not heed its history."""
    data, path = tmp_path / "data", tmp_path / "what-if.json"
    keeps = {"RELEVO_DATABASE_URL": "", "RELEVO_DATA_DIR": str(data)}
    with stack("fake", "--topology", "hybrid", "--traffic-log-bytes", "4000000", *FLAGS, env=keeps) as server:
        assert {worker["role"] for worker in server.get("/ready")["workers"]} == {"hybrid"}
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda number: chat(server, number), range(10)))
        cached = server.recorded_cached_tokens()
        time.sleep(0.3)  # records follow their answers
    relevo("simulate", "--ledger", "--data-dir", str(data), "--topology", "1p1d", "--json", str(path), "--quiet")
    told = json.loads(path.read_text())
    measured, simulated = told["as_served"]["measured"], told["as_served"]["simulated"]
    assert measured["num_requests"] == simulated["num_requests"] == 30
    assert measured["num_cached_tokens"] == cached > 0
    assert abs(told["as_served"]["errors"]["hit_fraction_points"]) < 0.1, "hits come from real chains"
    assert [each["label"] for each in told["configurations"]] == ["as served: hybrid", "1p1d"]
    texts = "".join(file.read_text() for file in (data / "traffic").glob("*.jsonl"))
    assert "token_ids" not in texts and 'prompt":[' not in texts
    with stack("fake", "--auto-from", "ledger", *FLAGS, env=keeps) as server:
        deadline = time.monotonic() + 120.0  # the simulator gives way to all that runs beside it
        while not (plans := server.get("/v1/plan")["plans"])[0]["decisions"]:
            assert time.monotonic() < deadline, "".join(server.log)
            time.sleep(0.1)
        (start,) = plans[0]["decisions"]
        assert start["verdict"] == "start" and "the busiest hour of the last 7 days (30 requests" in start["reason"]
        assert {worker["worker_id"]: worker["role"] for worker in server.get("/ready")["workers"]} == start["roles"]
        chat(server, 99)


@pytest.mark.slow
def test_the_command_that_is_printed_starts_with_the_pool_that_was_planned(tmp_path: Path) -> None:
    """The shape of the embedded model, on devices that leave it a pool of a few hundred MB. Red when a flag is refused,
    or the engine's pool differs by more than 2 %."""
    pytest.importorskip("relevo_native")
    (tmp_path / "config.json").write_text(json.dumps(SMOLLM2))
    path = tmp_path / "plan.json"
    asked = ["plan", "--model", str(tmp_path / "config.json"), "--devices", "2xRTX4090", "--quiet"]
    asked += ["--slo-ttft-p90", "1s", "--slo-itl-p90", "50ms"]
    asked += ["--workload", "400,20,2/s,30%", "--simulated-requests", "130", "--memory-utilization", "0.2"]
    relevo(*asked, "--json", str(path))
    told = json.loads(path.read_text())
    (line,) = told["commands"]["relevo"]
    words = shlex.split(line["command"])
    assert words[:3] == ["relevo", "serve", str(tmp_path / "config.json")]
    with stack("smollm2", *words[3:]) as server:
        answer = server.complete("Once upon a time", max_tokens=4)
        assert answer["usage"]["completion_tokens"] == 4
        blocks = server.metrics()
        pools: dict[str, float] = {}
        for (name, labels), value in blocks.items():
            if name == "relevo:blocks":
                worker = dict(labels)["worker"]
                pools[worker] = pools.get(worker, 0.0) + value
    planned = [stage["cache_tokens"] for stage in told["plans"][0]["stages"]]
    assert all(abs(16 * pool / min(planned) - 1.0) < 0.02 for pool in pools.values()), (pools, planned)
