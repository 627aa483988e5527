"""Structured output over real processes: the same answers unified and split, each of them whole and of its schema."""

from __future__ import annotations

import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from stack import Stack, stack

SCHEMA = {
    "type": "object",
    "properties": {
        "count": {"type": "integer", "minimum": 0, "maximum": 999},
        "unit": {"enum": ["kg", "g"]},
        "tags": {"type": "array", "items": {"enum": ["a", "bc"]}, "maxItems": 3},
    },
    "required": ["count", "unit", "tags"],
    "additionalProperties": False,
}


def ask(server: Stack, number: int) -> list[dict[str, Any]]:
    body = {
        "model": server.model,
        "messages": [{"role": "user", "content": f"How much of number {number}? " + "Say it well. " * number}],
        "response_format": {"type": "json_schema", "json_schema": {"name": "amount", "strict": True, "schema": SCHEMA}},
        "max_tokens": 200,
        "temperature": number % 2,
        "seed": number,
        "n": 1 + number % 3,
    }
    choices: list[dict[str, Any]] = server.post("/v1/chat/completions", body)["choices"]
    return choices


def test_held_answers_are_the_same_split_and_unified(split: Stack, unified: Stack) -> None:
    """Many at once. Red when the worker that takes over an answer begins its schema anew, when continuations share a
    place in it, or when either side knows other tokens than the other."""
    with ThreadPoolExecutor(12) as pool:
        told = list(pool.map(lambda number: ask(split, number), range(12)))
    assert told == [ask(unified, number) for number in range(12)]
    for choice in (choice for choices in told for choice in choices):
        answer = json.loads(choice["message"]["content"])
        assert choice["finish_reason"] == "stop"
        assert set(answer) == {"count", "unit", "tags"} and 0 <= answer["count"] <= 999
    split.wait_idle()


def test_held_answers_go_on_when_the_worker_that_writes_them_is_killed() -> None:
    """Several continuations, drawn and greedy. Red when what takes over begins a schema anew, or elsewhere in it."""
    with stack("fake", "--topology", "1p1d", "--fake-base-s", "0.05") as server, ThreadPoolExecutor(6) as pool:
        server.wait_ready()
        undisturbed = list(pool.map(lambda number: ask(server, number), range(6)))
        before = server.metric("relevo:decode_tokens_total", role="decode")
        asked = [pool.submit(ask, server, number) for number in range(6)]
        while server.metric("relevo:decode_tokens_total", role="decode") < before + 60:
            assert not all(each.done() for each in asked), "they ended before anything was killed"
        os.kill(server.pids()["decode-0"], signal.SIGKILL)
        assert [each.result() for each in asked] == undisturbed
        assert any("is gone" in line for line in server.log)
