"""A model of states behind HTTP: split, found again, or begun anew after a death, answers have one worker's tokens.

Red when a handoff leaves a state behind or counts other bytes than its formula, when tokens count as cached that were
computed, or when an answer is lost with a worker.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from handoffs import answers_until_handed_over
from loopback_boxes import command, free_port, get, until
from stack import Stack, stack
from test_ranks_served import rank_of
from tiny_folders import write_folder
from transformers import Qwen3_5TextConfig

HEADS, HEAD_SIZE, KEYS, VALUES, KERNEL = 2, 24, 8, 12, 4
TOKEN_BYTES = 2 * HEADS * HEAD_SIZE * 4  # of the one layer of full attention, float32
STATE_BYTES = 3 * (2 * KEYS * VALUES * 4 + (2 * 2 * KEYS + 2 * VALUES) * (KERNEL - 1) * 4)
LENGTH, NUM_PROMPTS, BLOCK = 150, 4, 16
FLAGS = ("--num-kv-blocks", "300", "--max-model-len", "512", "--dtype", "float32")

CONFIG = Qwen3_5TextConfig(
    vocab_size=256,
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=4,
    layer_types=["linear_attention", "full_attention", "linear_attention", "linear_attention"],
    num_attention_heads=4,
    num_key_value_heads=HEADS,
    head_dim=HEAD_SIZE,
    linear_num_key_heads=2,
    linear_num_value_heads=2,
    linear_key_head_dim=KEYS,
    linear_value_head_dim=VALUES,
    linear_conv_kernel_dim=KERNEL,
    max_position_embeddings=512,
    bos_token_id=None,
    eos_token_id=None,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("states"), CONFIG)


def ask(server: Stack, seed: int, length: int = LENGTH, max_tokens: int = 40) -> Any:
    prompt = [(seed + 7 * place + place * place) % 256 for place in range(length)]
    return server.complete(prompt, max_tokens=max_tokens, ignore_eos=True)


def answer(server: Stack, seed: int) -> str:
    return str(ask(server, seed)["choices"][0]["text"])


def num_cached(body: Any) -> int:
    return int((body["usage"].get("prompt_tokens_details") or {}).get("cached_tokens") or 0)


@pytest.fixture(scope="module", params=["native", pytest.param("torch", marks=pytest.mark.slow)])
def flags(request: pytest.FixtureRequest) -> tuple[str, ...]:
    return (*FLAGS, "--backend", request.param)


@pytest.fixture(scope="module")
def expected(folder: Path, flags: tuple[str, ...]) -> list[str]:
    """Of one worker, which then finds of each prompt what lies before its last block."""
    with stack(str(folder), "--topology", "unified", *flags) as alone:
        first = [answer(alone, seed) for seed in range(NUM_PROMPTS)]
        assert alone.metric("vllm:prefix_cache_hits_total") == 0
        again = [ask(alone, seed) for seed in range(NUM_PROMPTS)]
        assert [body["choices"][0]["text"] for body in again] == first
        assert [num_cached(body) for body in again] == [(LENGTH - 1) // BLOCK * BLOCK] * NUM_PROMPTS
    return first


@pytest.mark.parametrize("transport", ["shm", pytest.param("tcp", marks=pytest.mark.slow)])
def test_split_answers_are_those_of_one_worker(
    folder: Path, flags: tuple[str, ...], expected: list[str], transport: str
) -> None:
    apart = ("--topology", "1p1d", "--kv-transport", transport, "--no-enable-prefix-caching")
    with stack(str(folder), *apart, *flags) as split:
        handed = answers_until_handed_over(split, answer, expected)
        moved = split.metric("relevo:kv_transfer_bytes_total", role="prefill")
    assert moved == handed * (LENGTH * TOKEN_BYTES + STATE_BYTES)


def wait_for_another(server: Stack, worker_id: str, pid: int) -> None:
    deadline = time.monotonic() + 90.0
    while True:
        with contextlib.suppress(OSError):  # a server that is not ready says so with an error
            if server.pids().get(worker_id) not in (pid, 0, None):
                return
        assert time.monotonic() < deadline, f"{worker_id} did not come back"
        time.sleep(0.05)


@pytest.mark.slow
def test_answers_outlive_the_death_of_either_worker(folder: Path, flags: tuple[str, ...], expected: list[str]) -> None:
    """With hits on both sides; a worker that is killed amid them is replaced, and nothing is held in the end."""
    with stack(str(folder), "--topology", "1p1d", *flags, "--kv-transport", "tcp") as split:
        answers_until_handed_over(split, answer, expected)
        for victim in ("prefill-0", "decode-0"):
            killed_amid(split, victim, split.pids()[victim], expected)
            assert answer(split, 1) == expected[1]
        split.wait_idle()


def killed_amid(split: Stack, victim: str, pid: int, expected: list[str]) -> None:
    """`pid` of the worker `victim`, while it answers."""
    worker = split.pids()[victim]
    seeds = [number % NUM_PROMPTS for number in range(12)]
    with ThreadPoolExecutor(len(seeds)) as pool:
        answers = [pool.submit(answer, split, seed) for seed in seeds]
        answers[0].result()  # the others are on their way
        os.kill(pid, signal.SIGKILL)
        assert [each.result() for each in answers] == [expected[seed] for seed in seeds]
    wait_for_another(split, victim, worker)
    split.wait_ready()


def test_stages_answer_as_one_process(folder: Path, flags: tuple[str, ...], expected: list[str]) -> None:
    """Layers of both kinds in two processes: with hits, handed over, and when a rank is killed amid streams."""
    two = ("--pipeline-parallel-size", "2", *flags)
    with stack(str(folder), "--topology", "unified", *two) as alone:
        assert any("layers in 2 stages" in line for line in alone.log)
        first = [ask(alone, seed) for seed in range(NUM_PROMPTS)]
        again = [ask(alone, seed) for seed in range(NUM_PROMPTS)]
        assert [body["choices"][0]["text"] for body in (*first, *again)] == [*expected, *expected]
        assert [num_cached(body) for body in again] == [(LENGTH - 1) // BLOCK * BLOCK] * NUM_PROMPTS
    with stack(str(folder), "--topology", "1p1d", "--no-enable-prefix-caching", *two) as split:
        handed = answers_until_handed_over(split, answer, expected)
        moved = split.metric("relevo:kv_transfer_bytes_total", role="prefill")
        assert moved == handed * (LENGTH * TOKEN_BYTES + STATE_BYTES)
        killed_amid(split, "decode-0", rank_of(split, "decode-0"), expected)
        assert [answer(split, seed) for seed in range(NUM_PROMPTS)] == expected
        split.wait_idle()


def test_a_group_that_shares_states_answers_as_one_rank(folder: Path) -> None:
    """Handed over between two ranks and two, with hits, and when a rank is killed amid streams."""
    native = ("--backend", "native", *FLAGS)
    with stack(str(folder), "--topology", "unified", "--tensor-parallel-size", "1", *native) as alone:
        alike = [answer(alone, seed) for seed in range(NUM_PROMPTS)]
    with stack(str(folder), "--topology", "1p1d", "--tensor-parallel-size", "2", *native) as split:
        assert any("every layer shared by 2 processes" in line for line in split.log)
        answers_until_handed_over(split, answer, alike)
        killed_amid(split, "decode-0", rank_of(split, "decode-0"), alike)
        assert [answer(split, seed) for seed in range(NUM_PROMPTS)] == alike
        split.wait_idle()


def test_a_box_that_joins_decodes_what_the_head_computed(
    folder: Path, flags: tuple[str, ...], expected: list[str], tmp_path: Path
) -> None:
    """States over the network, from one stage to two; then found on either side."""
    founding = [sys.executable, "-m", "relevo", "cluster", "init", "--dir", "A", "--name", "a", "--out", "token"]
    subprocess.run(founding, cwd=tmp_path, check=True, capture_output=True)
    place, own = (f"127.0.0.1:{free_port()}" for _ in range(2))
    head = ("--topology", "1p", "--cluster", place, "--cluster-dir", str(tmp_path / "A"), *flags)
    node = ("join", place, "--token-file", "token", "--cluster-dir", "B", "--name", "b", "--listen", own, "--role",
            "1d", "--data-dir", "data-b", "--pipeline-parallel-size", "2", "--set", "num_kv_blocks=300")  # fmt: skip
    with (
        stack(str(folder), "--no-conditional-disaggregation", *head) as split,
        command(tmp_path, "b.log", *node),
    ):
        until(lambda: num_ready(split) == 2, tmp_path, "both are ready")
        assert [answer(split, seed) for seed in range(NUM_PROMPTS)] == expected
        split.wait_idle()
        assert split.metric("relevo:handoffs_total", outcome="completed") == NUM_PROMPTS
        moved = split.metric("relevo:kv_transfer_bytes_total", role="prefill")
        assert moved == NUM_PROMPTS * (LENGTH * TOKEN_BYTES + STATE_BYTES)
        assert [answer(split, seed) for seed in range(NUM_PROMPTS)] == expected, "found again"
        split.wait_idle()


def num_ready(server: Stack) -> int:
    """Workers, also while the answer is that not all are."""
    _, said = get(int(server.url.rpartition(":")[2]), "/ready")
    return sum(worker["ready"] for worker in said["workers"])
