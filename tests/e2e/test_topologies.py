"""Several workers per role: cached counts are true wherever prompts are computed, reasons are told, workers may die."""

from __future__ import annotations

import json
import os
import signal
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any

import pytest
from stack import Stack, stack

BLOCK = 16
FLAGS = (
    *("--num-kv-blocks", "512", "--max-model-len", "2048", "--fake-base-s", "0.002", "--fake-per-token-s", "0.0001"),
    *("--affinity-max-penalty-s", "60"),  # so that no measured time decides whether a prefix is found again
)
CASES = (
    pytest.param(("2p1d", "tcp"), id="2p1d-tcp"),
    pytest.param(("2p2d", "shm"), id="2p2d-shm"),
    pytest.param(("2p2d", "tcp"), id="2p2d-tcp", marks=pytest.mark.slow),
    pytest.param(("1p2d", "shm"), id="1p2d-shm", marks=pytest.mark.slow),
)


@pytest.fixture(scope="module", params=CASES)
def running(request: pytest.FixtureRequest) -> Iterator[Stack]:
    topology, transport = request.param
    with stack("fake", "--topology", topology, "--kv-transport", transport, *FLAGS) as server:
        yield server


def send(server: Stack, prompt: list[int], headers: dict[str, str] | None = None, **fields: Any) -> tuple[Any, str]:
    """The answer (of a stream: its usage chunk) and the router's reasons."""
    body = {"model": "fake", "prompt": prompt, "temperature": 0, "max_tokens": 4, "ignore_eos": True, **fields}
    all_headers = {"content-type": "application/json", "x-relevo-explain": "1", **(headers or {})}
    request = urllib.request.Request(server.url + "/v1/completions", json.dumps(body).encode(), all_headers)
    with urllib.request.urlopen(request, timeout=120) as answer:
        text, route = answer.read().decode(), answer.headers["x-relevo-route"]
    if not fields.get("stream"):
        return json.loads(text), route
    chunks = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    return next(chunk for chunk in chunks if chunk.get("usage")), route


def cached(server: Stack, prompt: list[int], headers: dict[str, str] | None = None, **fields: Any) -> int:
    """As the answer tells it, which is as the ledger has it."""
    before = server.recorded_cached_tokens()
    usage = send(server, prompt, headers, **fields)[0]["usage"]
    assert usage["prompt_tokens"] == len(prompt)
    told = int(usage["prompt_tokens_details"]["cached_tokens"])
    assert server.recorded_cached_tokens() - before == told
    return told


def decided(route: str, what: str) -> str:
    """Of `decode WORKER: reason | prompt WORKER: reason`, the worker."""
    notes = dict(note.split(":")[0].split(" ", 1) for note in route.split(" | "))
    return notes[what]


def numbers(seed: int, num_tokens: int) -> list[int]:
    return Random(seed).choices(range(256), k=num_tokens)


@pytest.mark.parametrize("num_tokens", [15, 16, 17, 160, 333])
def test_cached_tokens_are_the_blocks_that_nobody_computed(running: Stack, num_tokens: int) -> None:
    """Cold 0, repeat the block floor, whole blocks before a change; the same in a stream and in the
    ledger. Red when KV that was handed
    over counts as a hit, or when a repeat goes where its prefix is not."""
    prompt = numbers(num_tokens, num_tokens)
    floor = (num_tokens - 1) // BLOCK * BLOCK
    assert cached(running, prompt) == 0
    assert cached(running, prompt) == floor
    stream = {"stream": True, "stream_options": {"include_usage": True}}
    assert cached(running, prompt, **stream) == floor
    changed = [*prompt[:-1], (prompt[-1] + 1) % 256]
    assert cached(running, changed) == floor


def test_a_salt_of_its_own_finds_nothing(running: Stack) -> None:
    prompt = numbers(77, 200)
    assert cached(running, prompt) == 0
    assert cached(running, prompt, cache_salt="another") == 0
    assert cached(running, prompt, cache_salt="another") == 192


def test_sessions_in_turn_find_all_that_they_said_before(running: Stack) -> None:
    """The reasons name workers and rules. One request at a time: nothing is in flight that could outweigh a cache."""
    histories = {number: numbers(1000 + number, 100) for number in range(6)}
    for turn in range(4):
        for number, history in histories.items():
            hits = cached(running, history, {"x-session-affinity": f"session-{number}"})
            assert hits >= (len(history) - 50) // BLOCK * BLOCK if turn else hits == 0
            histories[number] = history + numbers(5000 + number * 10 + turn, 50)
    _, route = send(running, numbers(4242, 64))
    assert decided(route, "decode").startswith("decode-")
    assert decided(route, "prompt")
    running.wait_idle(deadline_s=30.0)


def test_a_killed_worker_of_each_role_comes_back_and_loses_only_its_cache(running: Stack) -> None:
    prompt = numbers(31, 320)
    expected = send(running, prompt)[0]["choices"][0]["text"]
    for worker_id in ("prefill-0", "decode-0"):
        before = running.pids()[worker_id]
        os.kill(before, signal.SIGKILL)
        assert send(running, prompt)[0]["choices"][0]["text"] == expected
        running.wait_ready()
        with ThreadPoolExecutor(4) as pool:
            texts = list(pool.map(lambda _: send(running, prompt)[0]["choices"][0]["text"], range(4)))
        assert set(texts) == {expected}
    running.wait_idle(deadline_s=30.0)


def test_a_baseline_can_be_served() -> None:
    with stack("fake", "--topology", "1p2d", "--routing-policy", "round_robin", *FLAGS) as server:
        routes = [send(server, numbers(i, 64))[1] for i in range(4)]
    workers = [decided(route, "decode") for route in routes]
    assert all("round_robin" in route for route in routes)
    assert workers[0] != workers[1]
    assert workers == workers[:2] * 2
