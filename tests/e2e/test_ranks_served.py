"""Workers of several processes behind HTTP: the answers of one process, whatever ends on the way, and nothing left.

Red when a rank that is killed is not missed at once, when its worker comes back without it, when a stream says another
token for it, or when a rank outlives its worker.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from stack import Stack, descendants, is_alive, stack
from tiny_folders import write_folder
from transformers import LlamaConfig

NUM_CLIENTS, LENGTH = 6, 100
FLAGS = ("--num-kv-blocks", "96", "--max-model-len", "512", "--backend", "native")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
    )
    return write_folder(tmp_path_factory.mktemp("ranks"), config)


@pytest.fixture(scope="module")
def expected(folder: Path) -> list[Any]:
    with stack(str(folder), "--topology", "unified", *FLAGS) as alone:
        return [answer(alone, seed) for seed in range(NUM_CLIENTS)]


@pytest.fixture(scope="module")
def split(folder: Path) -> Iterator[Stack]:
    with stack(str(folder), "--topology", "1p1d", "--pipeline-parallel-size", "2", *FLAGS) as running:
        yield running
        below = descendants(running.process.pid)
        running.process.send_signal(signal.SIGINT)
        assert running.process.wait(60) == 0
        assert not [pid for pid in below if is_alive(pid)], "a process stays behind"


def answer(server: Stack, seed: int, max_tokens: int = 40) -> Any:
    prompt = [(seed + 7 * place) % 256 for place in range(LENGTH)]
    choice = server.complete(prompt, max_tokens=max_tokens, logprobs=1, ignore_eos=True)["choices"][0]
    return choice["text"], choice["logprobs"]["token_logprobs"]


def rank_of(server: Stack, worker: str) -> int:
    """Its one child: the rank before it."""
    (pid,) = descendants(server.pids()[worker])
    return pid


def wait_until(condition: Any, what: str, deadline_s: float = 90.0) -> None:
    deadline = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def test_killed_ranks_change_no_answer(split: Stack, expected: list[Any]) -> None:
    """kill -9 of the first rank of both workers, one after the other, while all clients ask again and again."""
    assert any("layers in 2 stages" in line for line in split.log)
    for victim in ("decode-0", "prefill-0"):
        worker, rank = split.pids()[victim], rank_of(split, victim)
        asked = [seed for seed in range(NUM_CLIENTS) for _ in range(3)]
        with ThreadPoolExecutor(NUM_CLIENTS) as pool:
            answers = [pool.submit(answer, split, seed) for seed in asked]
            wait_until(lambda: split.metric("vllm:num_requests_running") > 0, "nothing ran")
            os.kill(rank, signal.SIGKILL)
            assert [each.result() for each in answers] == [expected[seed] for seed in asked]
        wait_until(lambda: split.pids().get(victim) not in (worker, 0, None), "the worker did not come back")  # noqa: B023
        split.wait_ready()
        assert not is_alive(worker)
        assert rank_of(split, victim) != rank
        said = f"rank 0 of {victim} has ended (signal SIGKILL): this worker ends with it"
        wait_until(lambda: any(said in line for line in split.log), "it is said why")  # noqa: B023
    split.wait_idle()
    assert [answer(split, seed) for seed in range(NUM_CLIENTS)] == expected


def test_an_idle_worker_misses_its_rank_and_a_dead_worker_takes_it_along(split: Stack, expected: list[Any]) -> None:
    """No step is under way when the rank ends; then the worker is killed, and its rank is gone with it."""
    worker, rank = split.pids()["decode-0"], rank_of(split, "decode-0")
    os.kill(rank, signal.SIGTERM)  # as a service manager does to all processes of a unit
    os.kill(rank, signal.SIGINT)
    assert answer(split, 0) == expected[0]
    assert is_alive(rank)
    os.kill(rank, signal.SIGKILL)
    wait_until(lambda: split.pids().get("decode-0") not in (worker, 0, None), "the worker did not come back")
    split.wait_ready()
    worker, rank = split.pids()["prefill-0"], rank_of(split, "prefill-0")
    os.kill(worker, signal.SIGKILL)
    wait_until(lambda: not is_alive(rank), "the rank outlives its worker")
    wait_until(lambda: split.pids().get("prefill-0") not in (worker, 0, None), "the worker did not come back")
    split.wait_ready()
    assert answer(split, 1) == expected[1]


def test_a_rank_that_stands_still_is_ended_with_its_worker(split: Stack, expected: list[Any]) -> None:
    """Its worker waits for it within a step, so its loop answers no more, and the supervisor ends both."""
    worker, rank = split.pids()["decode-0"], rank_of(split, "decode-0")
    os.kill(rank, signal.SIGSTOP)
    assert answer(split, 2) == expected[2]
    wait_until(lambda: split.pids().get("decode-0") not in (worker, 0, None), "the worker did not come back")
    split.wait_ready()
    assert not is_alive(rank)
    assert answer(split, 3) == expected[3]
