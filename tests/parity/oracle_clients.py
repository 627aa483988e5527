"""Clients of the fake engine who know the right answer of everything they ask."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from random import Random
from typing import Any

import aiohttp
import orjson

from relevo.core.request import SamplingParams
from relevo.engine.fake_model import FakeModel

EOS = 256
_MODEL = FakeModel()


@dataclass
class Answer:
    """What one client got. `error`: the one error that it was told, if any."""

    token_ids: list[int] = field(default_factory=list)
    error: str = ""
    num_errors: int = 0
    ended_at_s: float = 0.0
    was_cut: bool = False  # no end, no error


def make_prompt(rng: Random, num_tokens: int) -> list[int]:
    return [rng.randrange(256) for _ in range(num_tokens)]


def expected(prompt: list[int], max_tokens: int) -> list[int]:
    sampling = SamplingParams(max_tokens=max_tokens, seed=0, temperature=0.0, ignore_eos=True)
    return _MODEL.reference_tokens(prompt, sampling, eos_token_ids=(EOS,))


async def ask(session: aiohttp.ClientSession, url: str, prompt: list[int], max_tokens: int) -> Answer:
    """Streamed, greedy. Never raises but for cancellation, which is the client leaving."""
    answer = Answer()
    body: dict[str, Any] = {"model": "fake", "prompt": prompt, "max_tokens": max_tokens, "temperature": 0}
    body |= {"ignore_eos": True, "stream": True, "return_token_ids": True}
    is_complete = False
    try:
        async with session.post(url + "/v1/completions", json=body) as response:
            if response.status != 200:
                answer.error = f"HTTP {response.status} {(await response.text())[:200]}"
                answer.num_errors = 1
            else:
                async for line in response.content:
                    if line.startswith(b"data: [DONE]"):
                        is_complete = True
                    elif line.startswith(b"data: "):
                        _take(answer, orjson.loads(line[6:]))
    except (aiohttp.ClientError, ConnectionError, TimeoutError) as error:
        answer.error = f"{type(error).__name__}: {error}"
    answer.ended_at_s = time.monotonic()
    answer.was_cut = not is_complete and answer.num_errors != 1
    return answer


def _take(answer: Answer, event: dict[str, Any]) -> None:
    if "error" in event:
        answer.num_errors += 1
        answer.error = str(event["error"])
    for choice in event.get("choices", ()):
        answer.token_ids += choice.get("token_ids") or []


def wrong(answer: Answer, prompt: list[int], max_tokens: int, *, may_fail: bool) -> str:
    """Why an answer is not as it must be; empty if it is: all of the right tokens, or (`may_fail`) one error."""
    right = expected(prompt, max_tokens)
    if answer.num_errors:
        is_prefix = answer.token_ids == right[: len(answer.token_ids)]
        return (
            "" if may_fail and answer.num_errors == 1 and is_prefix else f"{answer.num_errors} errors: {answer.error}"
        )
    if answer.was_cut:
        return f"cut off: {answer.error}"
    return "" if answer.token_ids == right else f"{answer.token_ids} instead of {right}"


def clients() -> aiohttp.ClientSession:
    """A connection per request, because servers' processes come and go."""
    return aiohttp.ClientSession(
        timeout=aiohttp.ClientTimeout(total=120.0), connector=aiohttp.TCPConnector(limit=0, force_close=True)
    )


async def off_loop(function: Any, *arguments: Any) -> Any:
    return await asyncio.to_thread(function, *arguments)
