"""Workers whose ranks share every layer behind HTTP: the answers of one process that computes in slices, whatever ends
on the way, and nothing left.

Red when a rank that is killed or stands still is waited for, when its worker comes back without it, when a stream says
another token or another probability for it, or when a rank outlives its worker.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from stack import Stack, descendants, is_alive, stack
from test_ranks_served import FLAGS, answer, rank_of, wait_until
from tiny_folders import write_folder
from transformers import LlamaConfig, MixtralConfig

NUM_STREAMS = 16
SIZES = {
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("tensor"), LlamaConfig(**SIZES))


@pytest.fixture(scope="module")
def expected(folder: Path) -> list[Any]:
    with stack(str(folder), "--topology", "unified", "--tensor-parallel-size", "1", *FLAGS) as alone:
        return [answer(alone, seed) for seed in range(NUM_STREAMS)]


@pytest.fixture(scope="module")
def split(folder: Path) -> Iterator[Stack]:
    with stack(str(folder), "--topology", "1p1d", "--tensor-parallel-size", "2", *FLAGS) as running:
        yield running
        below = descendants(running.process.pid)
        running.process.send_signal(signal.SIGINT)
        assert running.process.wait(60) == 0
        assert not [pid for pid in below if is_alive(pid)], "a process stays behind"


def test_killed_ranks_change_no_answer(split: Stack, expected: list[Any]) -> None:
    """kill -9 of a rank of both workers, one after the other, under sixteen streams."""
    assert any("every layer shared by 2 processes" in line for line in split.log)
    for victim in ("decode-0", "prefill-0"):
        worker, rank = split.pids()[victim], rank_of(split, victim)
        with ThreadPoolExecutor(NUM_STREAMS) as pool:
            answers = [pool.submit(answer, split, seed) for seed in range(NUM_STREAMS)]
            wait_until(lambda: split.metric("vllm:num_requests_running") > 0, "nothing ran")
            os.kill(rank, signal.SIGKILL)
            assert [each.result() for each in answers] == expected
        wait_until(lambda: split.pids().get(victim) not in (worker, 0, None), "the worker did not come back")  # noqa: B023
        split.wait_ready()
        assert not is_alive(worker)
        assert rank_of(split, victim) != rank
        said = f"rank 0 of {victim} has ended (signal SIGKILL): this worker ends with it"
        wait_until(lambda: any(said in line for line in split.log), "it is said why")  # noqa: B023
    split.wait_idle()


def test_a_rank_that_stands_still_is_ended_with_its_worker(split: Stack, expected: list[Any]) -> None:
    worker, rank = split.pids()["decode-0"], rank_of(split, "decode-0")
    os.kill(rank, signal.SIGSTOP)
    assert answer(split, 2) == expected[2]
    wait_until(lambda: split.pids().get("decode-0") not in (worker, 0, None), "the worker did not come back")
    split.wait_ready()
    assert not is_alive(rank)
    assert answer(split, 3) == expected[3]


@pytest.mark.slow
def test_experts_whole_on_four_ranks_in_two_stages(tmp_path: Path) -> None:
    """Eight processes, and the answers of one."""
    folder = write_folder(tmp_path, MixtralConfig(**SIZES, num_local_experts=8, num_experts_per_tok=2))
    found = []
    for shape in (("--tensor-parallel-size", "1"), ("--tensor-parallel-size", "4", "--pipeline-parallel-size", "2")):
        with stack(str(folder), "--topology", "unified", "--enable-expert-parallel", *shape, *FLAGS) as server:
            found.append([answer(server, seed) for seed in range(4)])
    assert found[0] == found[1]
