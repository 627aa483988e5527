"""What a server told, streamed or whole, chat or completion, in one shape; and where two answers differ."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from grid_requests import GridRequest
from stack import Stack

LOGPROB_TOLERANCE = 1e-3


@dataclass
class ToldChoice:
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    top_logprobs: list[dict[str, float]] = field(default_factory=list)  # by text, or by bytes
    finish_reason: str | None = None
    stop_reason: int | str | None = None

    def add(self, choice: dict[str, Any]) -> None:
        """One choice of a whole answer, or of one event of a stream."""
        message = choice.get("message") or choice.get("delta") or {}
        self.text += choice.get("text") or message.get("content") or ""
        self.token_ids += choice.get("token_ids") or []
        self.finish_reason = choice["finish_reason"] or self.finish_reason
        self.stop_reason = choice.get("stop_reason", self.stop_reason)
        told = choice.get("logprobs") or {}
        self.logprobs += told.get("token_logprobs") or [entry["logprob"] for entry in told.get("content", ())]
        self.top_logprobs += told.get("top_logprobs") or [
            {str(top["bytes"]): top["logprob"] for top in entry["top_logprobs"]} for entry in told.get("content", ())
        ]


@dataclass
class Told:
    choices: list[ToldChoice]
    usage: dict[str, Any]

    @property
    def num_cached_tokens(self) -> int:
        return int(self.usage["prompt_tokens_details"]["cached_tokens"])


def ask(running: Stack, asked: GridRequest, num_logprobs: int | None = None) -> Told:
    """Raises AssertionError with the server's words if it refuses."""
    told = Told([ToldChoice() for _ in range(asked.row["n"])], {})
    for part in _parts(running, asked.path, asked.body(num_logprobs)):
        told.usage = part.get("usage") or told.usage
        for choice in part["choices"]:
            told.choices[choice["index"]].add(choice)
    return told


def _parts(running: Stack, path: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The whole answer, or the events of its stream."""
    request = urllib.request.Request(
        running.url + path, data=json.dumps(body).encode(), headers={"content-type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=300) as answer:
            if not body["stream"]:
                yield json.loads(answer.read())
                return
            events = [line[6:] for line in answer if line.startswith(b"data: ")]
    except urllib.error.HTTPError as error:
        raise AssertionError(f"{error.code} for {body}: {error.read().decode()}") from error
    assert events[-1].strip() == b"[DONE]", events[-1]
    yield from map(json.loads, events[:-1])


def difference(one: Told, other: Told) -> str | None:
    """The first thing in which two answers to one request differ, in one line."""
    for index, (a, b) in enumerate(zip(one.choices, other.choices, strict=True)):
        if a.token_ids != b.token_ids:
            at = first_different(a.token_ids, b.token_ids)
            return f"choice {index}, token {at}: {a.token_ids[at : at + 1]} and {b.token_ids[at : at + 1]}"
        for name in ("text", "finish_reason", "stop_reason"):
            if getattr(a, name) != getattr(b, name):
                return f"choice {index}, {name}: {getattr(a, name)!r} and {getattr(b, name)!r}"
        gap = logprob_gap(a, b)
        if gap is None or gap > LOGPROB_TOLERANCE:
            return f"choice {index}, logprobs: {gap if gap is not None else 'not as many'} apart"
    return None if one.usage == other.usage else f"usage: {one.usage} and {other.usage}"


def first_different(one: list[int], other: list[int]) -> int:
    shorter = min(len(one), len(other))
    return next((i for i in range(shorter) if one[i] != other[i]), shorter)


def logprob_gap(one: ToldChoice, other: ToldChoice) -> float | None:
    """The largest difference of any two log probabilities; None if they are not of the same number of tokens."""
    if len(one.logprobs) != len(other.logprobs) or len(one.top_logprobs) != len(other.top_logprobs):
        return None
    gaps = [abs(a - b) for a, b in zip(one.logprobs, other.logprobs, strict=True)]
    gaps += [_top_gap(a, b) for a, b in zip(one.top_logprobs, other.top_logprobs, strict=True)]
    return max(gaps, default=0.0)


def _top_gap(one: dict[str, float], other: dict[str, float]) -> float:
    """Who is the last of the best may change within the rounding; then it is compared with the other's last."""
    if not one or not other:
        return 0.0 if one == other else float("inf")
    gaps = [abs(one.get(name, min(one.values())) - other.get(name, min(other.values()))) for name in one | other]
    return max(gaps)
