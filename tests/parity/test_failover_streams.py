"""kill -9 of a worker with many streams open: each ends with exactly what an undisturbed unified engine says."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any

import pytest
from grid_requests import GridRequest
from stack import Stack, stack
from told_answers import ToldChoice, ask

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

NUM_STREAMS, NUM_KILLS = 64, 10
FAKE = ("fake", "--fake-base-s", "0.02", "--num-kv-blocks", "2048", "--max-model-len", "1024")
REAL = ("smollm2", "--num-kv-blocks", "2048", "--max-model-len", "1024")


def open_streams(rng: Random, vocab: int, max_tokens: int) -> list[GridRequest]:
    """Greedy and seeded, some with n = 2, penalties, log probabilities or stop strings; no two prompts alike."""
    asked = []
    for index in range(NUM_STREAMS):
        row: dict[str, Any] = {
            "endpoint": "completions",
            "stream": True,
            "logprobs": 2 if index % 8 == 6 else None,
            "max_tokens": max_tokens - rng.randrange(max_tokens // 3),
            "n": 2 if index % 8 in (2, 3) else 1,
            "temperature": 0.0 if index % 2 == 0 else 1.0,
        }
        if index % 4 == 1:
            row |= {"frequency_penalty": 0.4, "repetition_penalty": 1.1}
        if index % 8 == 5:
            row["stop"] = ["ab", " the"]
        prompt = tuple(rng.randrange(vocab) for _ in range(rng.randint(8, 90)))
        asked.append(GridRequest(index, row, rng.getrandbits(32), prompt))
    return asked


def said(running: Stack, asked: GridRequest) -> list[ToldChoice] | str:
    """All of it, log probabilities too, or why there was no complete answer."""
    try:
        return ask(running, asked).choices
    except (AssertionError, OSError, KeyError, ValueError) as error:
        return f"{type(error).__name__}: {error}"


def all_at_once(running: Stack, asked: list[GridRequest], pool: ThreadPoolExecutor) -> list[Any]:
    return [pool.submit(said, running, one) for one in asked]


def wait_until(condition: Callable[[], bool], otherwise: str) -> None:
    deadline = time.monotonic() + 60.0
    while not condition():
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.02)


@pytest.mark.parametrize("victim", ["decode-0", "prefill-0"])
@pytest.mark.parametrize(("flags", "vocab", "max_tokens"), [(FAKE, 256, 60), (REAL, 40_000, 48)])
def test_killed_workers_change_no_stream(
    flags: tuple[str, ...], vocab: int, max_tokens: int, victim: str, say: Callable[[str], None]
) -> None:
    rng = Random(5)
    rounds = [open_streams(rng, vocab, max_tokens) for _ in range(NUM_KILLS)]
    with ThreadPoolExecutor(NUM_STREAMS) as pool:
        with stack(*flags, "--topology", "unified") as oracle:
            expected = [[one.result() for one in all_at_once(oracle, asked, pool)] for asked in rounds]
        assert not [told for answers in expected for told in answers if isinstance(told, str)]
        with stack(*flags, "--topology", "1p1d") as running:
            wrong: list[str] = []
            for number, asked in enumerate(rounds):
                answers = all_at_once(running, asked, pool)
                wait_until(lambda: running.metric("vllm:num_requests_running") >= NUM_STREAMS // 2, "nothing streams")
                time.sleep(rng.uniform(0.0, 0.3))  # a different moment each time
                pid = running.pids()[victim]
                os.kill(pid, signal.SIGKILL)
                for one, told, want in zip(
                    asked, [answer.result() for answer in answers], expected[number], strict=True
                ):
                    if told != want:
                        wrong.append(f"kill {number + 1}, stream {one.number} {one.row}: {told} instead of {want}")
                wait_until(lambda pid=pid: running.pids()[victim] not in (0, pid), "the worker did not come back")
                running.wait_idle(10.0)
            total = NUM_STREAMS * NUM_KILLS
            say(
                f"kill -9 of {victim}, {flags[0]}: {total - len(wrong)} of {total} streams equal the undisturbed engine"
            )
    assert not wrong, "\n".join(line[:600] for line in wrong[:5])
