"""Models of windows, of latents and of experts whose layers are shared by two processes, behind HTTP: the answers of
one process that computes in slices, with a handoff and without, and after the end of a rank.

Red when a rank writes its heads by another group's table, when a window slides on one rank only, or when what is handed
over of windows and latents is one rank's part.
"""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from handoffs import answers_until_handed_over
from stack import stack
from test_grouped_serving import FLAGS, model_of
from test_latent_serving import CONFIG
from test_ranks_served import answer, rank_of, wait_until
from tiny_folders import write_folder

NUM_STREAMS = 6


@pytest.mark.parametrize(
    "family", ["gemma3", *(pytest.param(each, marks=pytest.mark.slow) for each in ("gpt_oss", "llama4", "deepseek"))]
)
def test_two_ranks_answer_as_one(family: str, tmp_path: Path) -> None:
    folder = str(write_folder(tmp_path, CONFIG if family == "deepseek" else model_of(family).config))
    seeds = range(NUM_STREAMS)
    with stack(folder, "--topology", "unified", "--tensor-parallel-size", "1", *FLAGS) as alone:
        expected = [answer(alone, seed) for seed in seeds]
    two = ("--tensor-parallel-size", "2", *FLAGS)
    with stack(folder, "--topology", "unified", *two) as server, ThreadPoolExecutor(NUM_STREAMS) as pool:
        assert any("every layer shared by 2 processes" in line for line in server.log)
        assert list(pool.map(lambda seed: answer(server, seed), seeds)) == expected
        assert list(pool.map(lambda seed: answer(server, seed), seeds)) == expected, "found in the prefix cache"
    flags = ("--topology", "1p1d", "--no-enable-prefix-caching", *two)
    with stack(folder, *flags) as split, ThreadPoolExecutor(NUM_STREAMS) as pool:
        answers_until_handed_over(split, answer, expected)
        worker, rank = split.pids()["decode-0"], rank_of(split, "decode-0")
        answers = [pool.submit(answer, split, seed) for seed in seeds]
        wait_until(lambda: split.metric("vllm:num_requests_running") > 0, "nothing ran")
        os.kill(rank, signal.SIGKILL)
        assert [each.result() for each in answers] == expected
        wait_until(lambda: split.pids().get("decode-0") not in (worker, 0, None), "the worker did not come back")
        split.wait_ready()
        split.wait_idle()
        assert answer(split, 0) == expected[0]
