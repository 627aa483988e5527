"""Workers whose ranks exchange arrays over a process group, behind HTTP: the answers of those over shared memory.

Red when a token or a probability depends on the way between ranks, when a rank that is killed is waited for, and when a
rank listens at an address that others reach.
"""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from stack import Stack, descendants, is_alive, stack
from test_ranks_served import FLAGS, answer, rank_of, wait_until
from test_tensor_ranks_served import SIZES
from tiny_folders import write_folder
from transformers import LlamaConfig

from listening import listening_hosts

NUM_STREAMS = 6
SHAPES = {
    "a group": ("--tensor-parallel-size", "2"),
    "stages": ("--pipeline-parallel-size", "2"),
    "both": ("--tensor-parallel-size", "2", "--pipeline-parallel-size", "2"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("gloo"), LlamaConfig(**SIZES))


def answers(server: Stack) -> list[Any]:
    with ThreadPoolExecutor(NUM_STREAMS) as pool:
        return list(pool.map(lambda seed: answer(server, seed), range(NUM_STREAMS)))


@pytest.mark.parametrize("shape", ["a group", "stages", pytest.param("both", marks=pytest.mark.slow)])
def test_answers_are_those_over_shared_memory(folder: Path, shape: str) -> None:
    flags = ("--topology", "unified", *SHAPES[shape], *FLAGS)
    with stack(str(folder), *flags) as server:
        expected = answers(server)
    with stack(str(folder), *flags, "--collectives", "gloo") as server:
        assert answers(server) == expected
        if shape != "both":
            check_kill(server, expected)
        below = descendants(server.process.pid)
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(60) == 0
        assert not [pid for pid in below if is_alive(pid)], "a process stays behind"


def check_kill(server: Stack, expected: list[Any]) -> None:
    worker, rank = server.pids()["unified-0"], rank_of(server, "unified-0")
    assert listening_hosts(rank) == {"127.0.0.1"}
    with ThreadPoolExecutor(1) as pool:
        under_way = pool.submit(answers, server)
        wait_until(lambda: server.metric("vllm:num_requests_running") > 0, "nothing ran")
        os.kill(rank, signal.SIGKILL)
        assert under_way.result() == expected
    wait_until(lambda: server.pids().get("unified-0") not in (worker, 0, None), "the worker did not come back")
    said = "rank 0 of unified-0 has ended (signal SIGKILL): this worker ends with it"
    wait_until(lambda: any(said in line for line in server.log), "it is said why")
    server.wait_ready()
    assert answers(server) == expected
