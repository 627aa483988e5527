"""Mixed traffic with a known answer for every request, and the comparison of the usage ledger with it.

Streams with and without usage, several choices, several prompts, stop strings, clients that leave, requests that are
refused. Every request has an x-request-id of its own, which the ledger keeps as part of `response_id`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import aiohttp

PRICES = {  # no two alike, and not multiples of one another: a swapped or rounded price cannot hide
    "fake": {
        "input_cost_per_token": "0.00000014999999999999998",
        "cache_read_input_token_cost": "0.0000000033",
        "output_cost_per_token": "0.00000061",
    }
}
TIMEOUT_S = 120.0  # arbitrary; ends a run in which an answer never comes


@dataclass
class Sent:
    """One request and what its client saw."""

    request_id: str
    path: str
    body: dict[str, Any]
    leave_after: int | None = None  # events of the stream; None: stays to the end
    key: str | None = None
    status: int | None = None
    is_complete: bool = False  # the whole body, or [DONE]
    was_cut: bool = False  # the connection broke off
    usage: dict[str, int] | None = None  # what the client can add up
    num_tokens_seen: int = 0

    @property
    def response_id(self) -> str:
        return ("chatcmpl-" if "chat" in self.path else "cmpl-") + self.request_id


def make_traffic(rng: Random, num_requests: int, *, keys: tuple[str | None, ...] = (None,)) -> list[Sent]:
    prefixes = [[rng.randrange(256) for _ in range(96)] for _ in range(5)]  # shared, so that there are cached tokens
    return [_one(rng, number, prefixes, rng.choice(keys)) for number in range(num_requests)]


def _one(rng: Random, number: int, prefixes: list[list[int]], key: str | None) -> Sent:
    def prompt() -> list[int]:
        return rng.choice(prefixes)[: rng.choice((16, 48, 96))] + [
            rng.randrange(256) for _ in range(rng.randint(1, 20))
        ]

    body: dict[str, Any] = {
        "model": "fake",
        "max_tokens": rng.randint(1, 24),
        "n": rng.choice((1, 1, 1, 2, 3)),
        "seed": number,
        "ignore_eos": True,
        "return_token_ids": True,
        "stream": rng.random() < 0.6,
    }
    path = "/v1/completions"
    if rng.random() < 0.25:
        path = "/v1/chat/completions"
        body["messages"] = [{"role": "user", "content": "x" * rng.randint(1, 60)}]
    else:
        body["prompt"] = [prompt() for _ in range(rng.randint(2, 3))] if rng.random() < 0.1 else prompt()
    if rng.random() < 0.2:
        body["stop"] = [chr(rng.randrange(97, 123)), "qq"]
    sent = Sent(f"q{number}", path, body, key=key)
    match rng.randrange(10):
        case 0:
            sent.body |= {"stream": True, "max_tokens": 200}
            sent.leave_after = rng.randint(1, 6)
        case 1:
            sent.body |= rng.choice(
                ({"temperature": -1}, {"model": "nobody"}, {"n": 0}, {"max_tokens": "many"}, {"stop": 5})
            )
        case 2 | 3 | 4:
            sent.body["stream_options"] = {"include_usage": True}
    return sent


async def run_traffic(
    url: str,
    traffic: list[Sent],
    *,
    num_at_once: int,
    after_each: Callable[[int], None] = lambda num_complete: None,
) -> None:
    """Send everything; `after_each` hears how many answers are complete, after every one."""
    pending = list(reversed(traffic))
    num_complete = 0

    async def client(session: aiohttp.ClientSession) -> None:
        nonlocal num_complete
        while pending:
            sent = pending.pop()
            try:
                await _send(session, url, sent)
            except (aiohttp.ClientError, ConnectionError):
                sent.was_cut = True
            if sent.is_complete:
                num_complete += 1
                after_each(num_complete)

    timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session, asyncio.TaskGroup() as group:
        for _ in range(num_at_once):
            group.create_task(client(session))


async def _send(session: aiohttp.ClientSession, url: str, sent: Sent) -> None:
    headers = {"x-request-id": sent.request_id} | ({"authorization": f"Bearer {sent.key}"} if sent.key else {})
    async with session.post(url + sent.path, json=sent.body, headers=headers) as answer:
        sent.status = answer.status
        if answer.status != 200 or not sent.body["stream"]:
            body = json.loads(await answer.read())
            sent.is_complete = True
            sent.usage = _usage(body["usage"]) if answer.status == 200 else None
            return
        num_events = 0
        prompt_token_ids: dict[int, int] = {}
        async for line in answer.content:
            if not line.startswith(b"data: "):
                continue
            num_events += 1
            if line.startswith(b"data: [DONE]"):
                sent.is_complete = True
                break
            event = json.loads(line.removeprefix(b"data: "))
            assert "error" not in event, event
            if event.get("usage"):
                sent.usage = _usage(event["usage"])
            for choice in event["choices"]:
                sent.num_tokens_seen += len(choice.get("token_ids") or ())
                if "prompt_token_ids" in choice:
                    prompt_token_ids[choice["index"] // sent.body["n"]] = len(choice["prompt_token_ids"])
            if num_events == sent.leave_after:
                answer.close()
                return
        if sent.is_complete and sent.usage is None:
            sent.usage = {"completion_tokens": sent.num_tokens_seen}
            if prompt_token_ids:
                sent.usage["prompt_tokens"] = sum(prompt_token_ids.values())


def _usage(usage: dict[str, Any]) -> dict[str, int]:
    return {
        "prompt_tokens": usage["prompt_tokens"],
        "cached_tokens": usage["prompt_tokens_details"]["cached_tokens"],
        "completion_tokens": usage["completion_tokens"],
    }


@dataclass
class Comparison:
    num_finished: int = 0  # answers that clients saw complete
    num_left: int = 0  # rows of clients that left, or whose connection broke off
    num_lost: int = 0  # left or cut off, and no row
    num_refused: int = 0
    num_cached_tokens: int = 0
    num_completion_tokens: int = 0
    cost: Decimal = field(default_factory=lambda: Decimal(0))

    def __str__(self) -> str:
        return (
            f"{self.num_finished} finished, {self.num_left} left or cut, {self.num_lost} of the kind without a row, "
            f"{self.num_refused} refused; "
            f"{self.num_completion_tokens} completion and {self.num_cached_tokens} cached tokens, cost {self.cost}"
        )


def read_rows(database: Path) -> list[dict[str, Any]]:
    with contextlib.closing(sqlite3.connect(database)) as connection:
        connection.row_factory = sqlite3.Row
        return [dict(row) for row in connection.execute("SELECT * FROM usage_ledger")]


def compare(traffic: list[Sent], rows: list[dict[str, Any]], max_num_lost: int) -> Comparison:
    """Every complete answer has exactly one row that says what the client saw; refused requests have none.

    `max_num_lost`: requests that were running when a gateway was killed; those alone may have no row.
    """
    by_response: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        by_response.setdefault(row["response_id"], []).append(row)
    assert all(len(found) == 1 for found in by_response.values()), "a request has several rows"
    assert by_response.keys() <= {sent.response_id for sent in traffic}, "a row of a request that nobody sent"
    seen = Comparison()
    for sent in traffic:
        row = next(iter(by_response.get(sent.response_id, [])), None)
        if row is not None:
            _check_cost(row)
        if sent.is_complete and sent.status == 200:
            _check_complete(sent, row, seen)
        elif sent.is_complete:
            assert row is None, f"{sent.status} is billed: {row}"
            seen.num_refused += 1
        else:
            assert sent.leave_after is not None or sent.was_cut, sent
            seen.num_left += row is not None
            seen.num_lost += row is None
            if row is not None and not sent.was_cut:
                assert row["completion_tokens"] >= sent.num_tokens_seen, (sent, row)
    assert seen.num_lost <= max_num_lost, f"{seen.num_lost} clients left or were cut off without a row"
    return seen


def _check_complete(sent: Sent, row: dict[str, Any] | None, seen: Comparison) -> None:
    assert row is not None, f"a client saw {sent.response_id} finish, and the ledger does not know it"
    assert row["outcome"] == "finished", row
    assert sent.usage is not None
    assert {name: row[name] for name in sent.usage} == sent.usage, sent
    assert row["unbilled_prompt_tokens"] == row["unbilled_completion_tokens"] == 0
    seen.num_finished += 1
    seen.num_cached_tokens += row["cached_tokens"]
    seen.num_completion_tokens += row["completion_tokens"]
    seen.cost += Decimal(row["cost"])


def _check_cost(row: dict[str, Any]) -> None:
    """In integers of 10^-24: nothing here can round."""
    price = {name: int(Decimal(text).scaleb(24)) for name, text in PRICES["fake"].items()}
    expected = (
        price["input_cost_per_token"] * (row["prompt_tokens"] - row["cached_tokens"])
        + price["cache_read_input_token_cost"] * row["cached_tokens"]
        + price["output_cost_per_token"] * row["completion_tokens"]
    )
    whole, _, decimals = row["cost"].partition(".")
    assert int(whole + decimals.ljust(24, "0")) == expected, row
