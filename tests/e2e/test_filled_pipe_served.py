"""A worker whose stages compute pieces of a step at once, behind HTTP: the answers of one process, whatever ends while
pieces are in the pipe, and nothing left.

Prompts are several steps long and a step several pieces, decodes of other requests among them. Red when a client that
leaves or a rank that is killed changes another's answer, or when blocks stay behind.
"""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from stack import Stack, stack
from test_ranks_served import folder, rank_of, wait_until

__all__ = ["folder"]

NUM_CLIENTS, LENGTH = 4, 400
FLAGS = ("--topology", "unified", "--num-kv-blocks", "96", "--max-model-len", "512", "--backend", "native")
STEPS = ("--max-num-batched-tokens", "288")
STAGES = ("--pipeline-parallel-size", "2")


def body(server: Stack, seed: int, max_tokens: int) -> dict[str, Any]:
    prompt = [(seed + 7 * place) % 256 for place in range(LENGTH)]
    asked = {"model": server.model, "prompt": prompt, "temperature": 0, "logprobs": 1, "ignore_eos": True}
    return {**asked, "max_tokens": max_tokens}


def answer(server: Stack, seed: int) -> Any:
    choice = server.post("/v1/completions", body(server, seed, 24))["choices"][0]
    return choice["text"], choice["logprobs"]["token_logprobs"]


def leave(server: Stack, seed: int) -> None:
    """A client that does not wait for its answer."""
    with pytest.raises(OSError, match="timed out"):
        server.post("/v1/completions", body(server, seed, 110), timeout_s=0.02)


def test_what_ends_with_pieces_in_the_pipe_changes_no_answer(folder: Path) -> None:
    seeds = range(NUM_CLIENTS)
    with stack(str(folder), *FLAGS, *STEPS) as alone:
        expected = [answer(alone, seed) for seed in seeds]
    with stack(str(folder), *FLAGS, *STEPS, *STAGES) as split, ThreadPoolExecutor(2 * NUM_CLIENTS) as pool:
        assert [answer(split, seed) for seed in seeds] == expected
        asked = [seed for seed in seeds for _ in range(3)]
        gone = [pool.submit(leave, split, 50 + number) for number in range(6)]
        answers = [pool.submit(answer, split, seed) for seed in asked]
        assert [each.result() for each in answers] == [expected[seed] for seed in asked]
        assert [each.result() for each in gone] == [None] * len(gone)
        split.wait_idle()
        worker, rank = split.pids()["unified-0"], rank_of(split, "unified-0")
        answers = [pool.submit(answer, split, seed) for seed in asked]
        wait_until(lambda: split.metric("vllm:num_requests_running") > 0, "nothing ran")
        os.kill(rank, signal.SIGKILL)
        assert [each.result() for each in answers] == [expected[seed] for seed in asked]
        wait_until(lambda: split.pids().get("unified-0") not in (worker, 0, None), "the worker did not come back")
        split.wait_ready()
        split.wait_idle()
