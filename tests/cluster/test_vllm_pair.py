"""A real vLLM on two machines of one box behind Relevo: `make cluster-vllm`.

Red when split answers differ from vLLM's own, when the death of an engine or a gateway that stood still costs an answer
or makes a wrong one, or when a client's fields reach an engine. Answers are compared one at a time where they must be
equal: vLLM's own differ in near ties with what else is in the batch.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from machines import Network, why_not
from vllm_machines import BLOCK_SIZE, LEASE_S, VLLM, Pair, vllm_pair

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(5400),
    pytest.mark.skipif(why_not() is not None, reason=why_not() or ""),
    pytest.mark.skipif(not (VLLM / ".installed").exists(), reason="make cluster-vllm installs vLLM first"),
]
NUM_PROMPTS = int(os.environ.get("NUM_PROMPTS", "200"))


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with Network(2) as network, vllm_pair(network, tmp_path_factory.mktemp("vllm")) as running:
        yield running


def prompts(seed: int, count: int) -> list[list[int]]:
    rng = Random(seed)
    return [[rng.randrange(256) for _ in range(rng.randrange(20, 400))] for _ in range(count)]


def tokens_alone(answers: list[tuple[int, Any]]) -> list[list[int]]:
    assert all(status == 200 for status, _ in answers)
    return [told["choices"][0]["token_ids"] for _, told in answers]


tokens_behind = tokens_alone


def alone(pair: Pair, asked: list[list[int]], max_tokens: int = 16) -> list[list[int]]:
    return tokens_alone(pair.ask_all([pair.alone(pair.prefill, each, max_tokens) for each in asked], width=1))


def test_answers_equal_vllm_alone_and_are_counted(pair: Pair) -> None:
    asked = prompts(1, NUM_PROMPTS)
    expected = alone(pair, asked)
    before = pair.handoffs("completed")
    told = pair.ask_all([pair.behind(each) for each in asked], width=1)
    assert tokens_behind(told) == expected
    assert pair.handoffs("completed") - before == NUM_PROMPTS
    again = pair.ask_all([pair.behind(each) for each in asked[:20]], width=1)
    for prompt, (_, answer) in zip(asked, again, strict=False):
        whole_blocks = (len(prompt) - 1) // BLOCK_SIZE * BLOCK_SIZE
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == whole_blocks


def test_nothing_of_a_client_reaches_an_engine(pair: Pair) -> None:
    (prompt,) = prompts(2, 1)
    poison = {"kv_transfer_params": {"do_remote_prefill": True}}
    for fields in (poison, {"extra_body": poison}, {"sampling_params": poison}):
        pair.ask_all([pair.behind(prompt, **fields)])
    ((status, _),) = pair.ask_all([pair.behind(prompt)])
    assert status == 200


def test_a_gateway_that_stood_still_asks_for_nothing_late(pair: Pair) -> None:
    asked = prompts(3, 8)
    expected = alone(pair, asked)
    assert pair.process is not None
    told: list[Any] = []
    asking = threading.Thread(target=lambda: told.extend(pair.ask_all([pair.behind(each) for each in asked], width=8)))
    asking.start()
    time.sleep(0.3)
    gateway = [pid for pid in descendants(pair.process.pid) if b"gateway" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    for pid in gateway:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(LEASE_S + 3)
    others = [pair.alone(pair.prefill, each) for each in prompts(4, 20)]
    pair.ask_all(others)  # what was freed is written over
    for pid in gateway:
        os.kill(pid, signal.SIGCONT)
    asking.join(600)
    assert tokens_behind(told) == expected


@pytest.mark.parametrize("which", ["decode", "prefill"])
def test_a_killed_engine_costs_no_answer(pair: Pair, which: str) -> None:
    engine = pair.decode if which == "decode" else pair.prefill
    asked = prompts(5, 6)
    expected = alone(pair, asked, 64)
    told: list[Any] = []
    bodies = [pair.behind(each, 64) for each in asked]
    asking = threading.Thread(target=lambda: told.extend(pair.ask_all(bodies, width=6)))
    asking.start()
    time.sleep(1.0)
    engine.kill()
    asking.join(900)
    assert tokens_behind(told) == expected
    engine.start()
    pair.wait_paired()


def test_sigterm_of_an_engine_loses_nothing(pair: Pair) -> None:
    asked = prompts(6, 6)
    expected = alone(pair, asked, 64)
    told: list[Any] = []
    bodies = [pair.behind(each, 64) for each in asked]
    asking = threading.Thread(target=lambda: told.extend(pair.ask_all(bodies, width=6)))
    asking.start()
    time.sleep(1.0)
    pair.decode.terminate()
    asking.join(900)
    assert tokens_behind(told) == expected


def descendants(pid: int) -> list[int]:
    found: list[int] = []
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in children.read_text().split():
            found += [int(child), *descendants(int(child))]
    return found
