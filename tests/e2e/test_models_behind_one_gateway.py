"""Two models in one server: each has workers, caches and failures of its own; they start together or not at all."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from stack import OPERATOR, Stack, stack

MODELS = """
[small]
model = "fake"
topology = "1p1d"
num_kv_blocks = 256
max_model_len = "1k"
[large]
model = "fake"
served_model_name = ["large", "big"]
topology = "unified"
num_kv_blocks = 256
fake_base_s = 0.01
price = { input_cost_per_token = "0.25", cache_read_input_token_cost = "0", output_cost_per_token = "1" }
"""


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    path = tmp_path_factory.mktemp("models") / "models.toml"
    path.write_text(MODELS)
    with stack(f"--models={path}") as running:
        yield running


def ask(running: Stack, model: str, prompt: list[int], **fields: Any) -> Any:
    body = {"model": model, "prompt": prompt, "temperature": 0, "max_tokens": 8, "ignore_eos": True, **fields}
    return running.post("/v1/completions", body)


def cached(answer: Any) -> int:
    return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])


def test_caches_usage_and_series_are_each_models_own(both: Stack) -> None:
    """Red when two models share a prefix index, a block or a price."""
    prompt = list(range(100))
    assert [cached(ask(both, "small", prompt)) for _ in range(2)] == [0, 96]
    assert [cached(ask(both, name, prompt)) for name in ("large", "big")] == [0, 96], "an alias is the same model"
    usage = both.get("/v1/usage?group_by=model")
    costs = {row["model"]: row["cost"] for row in usage["data"]}
    assert costs == {"small": "0", "large": "33", "big": "9"}, "100 and 4 uncached tokens, 8 of output each"
    assert both.metric("relevo:prefill_tokens_total", model_name="small") == 104
    assert both.metric("relevo:prefill_tokens_total", model_name="large") == 104
    workers = {worker["worker_id"]: worker["model"] for worker in both.get("/ready")["workers"]}
    assert workers == {"small/prefill-0": "small", "small/decode-0": "small", "large/unified-0": "large"}


def test_a_dead_worker_of_one_model_disturbs_no_other(both: Stack) -> None:
    """Its own requests wait and continue; the other's answers are what they would be, and no worker of it restarts."""
    prompts = [[(i * 13 + j) % 256 for j in range(30)] for i in range(6)]
    expected = {name: [ask(both, name, prompt)["choices"] for prompt in prompts] for name in ("small", "large")}
    before = both.pids()
    with ThreadPoolExecutor(12) as pool:
        running = [pool.submit(ask, both, "large", prompt, max_tokens=100) for prompt in prompts]
        os.kill(before["large/unified-0"], signal.SIGKILL)
        others = list(pool.map(lambda prompt: ask(both, "small", prompt)["choices"], prompts))
        assert others == expected["small"]
        assert all(future.result()["usage"]["completion_tokens"] == 100 for future in running)
    after = both.pids()
    assert [ask(both, "large", prompt)["choices"] for prompt in prompts] == expected["large"]
    assert after["small/prefill-0"] == before["small/prefill-0"] and after["small/decode-0"] == before["small/decode-0"]
    assert both.metric("relevo:worker_restarts_total", model_name="small") == 0
    assert both.metric("relevo:worker_restarts_total", model_name="large") == 1
    both.wait_idle(60)


def test_the_workers_of_one_model_are_drained(both: Stack) -> None:
    before = both.pids()
    command = [sys.executable, "-m", "relevo", "drain", "--url", both.url, "--model", "large"]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **OPERATOR})
    assert done.returncode == 0, done.stderr
    after = both.pids()
    assert {name for name in after if after[name] != before[name]} == {"large/unified-0"}


def test_an_unknown_model_is_told_which_exist(both: Stack) -> None:
    with pytest.raises(urllib.error.HTTPError) as caught:
        ask(both, "huge", [1])
    assert caught.value.code == 404
    assert "small, large, big" in json.loads(caught.value.read())["error"]["message"]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ('model = "fake"\nchat_template = "/no/such.jinja"', "model broken: --chat-template /no/such.jinja"),
        ('model = "fake"\nfake_base_s = 60', "model broken: a step of"),
    ],
    ids=["in the gateway", "in a worker"],
)
def test_all_models_start_or_none_and_the_one_that_cannot_is_named(tmp_path: Path, wrong: str, said: str) -> None:
    path = tmp_path / "models.toml"
    path.write_text(f'[fine]\nmodel = "fake"\n[broken]\n{wrong}\nnum_kv_blocks = 64\n')
    done = subprocess.run(
        [sys.executable, "-m", "relevo", "serve", "--models", str(path), "--port", "0", "--database-url", "memory"],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 2
    assert said in done.stderr and "Traceback" not in done.stderr
    assert "ready:" not in done.stderr
