"""One answer: the request for it, its pieces as they come, and what can be said of it afterwards.

The connection is closed when the caller leaves early, which is how a server of this API is told to stop.
"""

from __future__ import annotations

import re
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import orjson

from relevo.client.http import CannotConnect, ConnectionBroken, Response
from relevo.client.server import OpenAIServer
from relevo.client.sse import SSEParser
from relevo.core.errors import RelevoError

EXPLAIN_HEADER, ROUTE_HEADER = "x-relevo-explain", "x-relevo-route"
SESSION_HEADER = "x-session-affinity"
MAX_ERROR_CHARS = 500  # of a server's words in ours; arbitrary
_TEXTS = ("reasoning_content", "reasoning", "content", "refusal")  # of a delta, in the order in which they are read
_WORKER = re.compile(r"(?:^|\| )(prompt|decode) ([^\s:|]+):")


class AnswerFailed(RelevoError):
    """The server refused, failed, or went away before the answer was complete."""


@dataclass(frozen=True, slots=True)
class Piece:
    text: str
    is_reasoning: bool = False


@dataclass(slots=True)
class AnswerFacts:
    """Filled while the answer comes."""

    sent_at_ns: int = 0
    first_at_ns: int = 0
    last_at_ns: int = 0
    finish_reason: str = ""
    num_prompt_tokens: int | None = None
    num_cached_tokens: int | None = None
    num_output_tokens: int | None = None
    route: str = ""  # why it went where it went, if the server tells

    @property
    def workers(self) -> str:
        """`prefill-0 → decode-0`; one name if one worker did both."""
        named = dict(_WORKER.findall(self.route))
        return " → ".join(dict.fromkeys(named[step] for step in ("prompt", "decode") if step in named))

    def told(self) -> list[str]:
        """What is known, each fact in a few words."""
        parts = []
        if self.first_at_ns:
            parts.append(f"TTFT {(self.first_at_ns - self.sent_at_ns) / 1e6:.0f} ms")
        spent_ns = self.last_at_ns - self.first_at_ns
        if self.num_output_tokens is not None:
            rate = f", {(self.num_output_tokens - 1) / spent_ns * 1e9:.1f}/s" if spent_ns > 0 else ""
            parts.append(f"{self.num_output_tokens} tokens{rate}")
        if self.num_prompt_tokens is not None:
            cached = "" if self.num_cached_tokens is None else f", {self.num_cached_tokens} cached"
            parts.append(f"prompt {self.num_prompt_tokens}{cached}")
        return [*parts, self.workers] if self.workers else parts


async def answer(
    server: OpenAIServer,
    body: dict[str, Any],
    facts: AnswerFacts,
    *,
    session_id: str,
    silence_s: float,
    now_ns: Callable[[], int] = time.monotonic_ns,
) -> AsyncGenerator[Piece, None]:
    """The pieces in order. Raises AnswerFailed in one sentence."""
    headers = {EXPLAIN_HEADER: "1", SESSION_HEADER: session_id}
    request = server.request("POST", "/v1/chat/completions", orjson.dumps(body), headers)
    facts.sent_at_ns = now_ns()
    try:
        async with server.open(request, silence_s=silence_s) as response:
            facts.route = response.headers.get(ROUTE_HEADER, "")
            if response.status != 200:
                raise AnswerFailed(_refusal(response.status, await response.read()))
            async with aclosing(_pieces(response, facts, now_ns)) as pieces:
                async for piece in pieces:
                    yield piece
    except TimeoutError as error:
        raise AnswerFailed(f"{server.url} has sent nothing for {silence_s:.0f} s; ask again") from error
    except CannotConnect as error:
        raise AnswerFailed(f"no server answers at {server.url} any more; start it again, then ask again") from error
    except ConnectionBroken as error:
        raise AnswerFailed("the connection broke off before the answer was complete; ask again") from error


async def _pieces(response: Response, facts: AnswerFacts, now_ns: Callable[[], int]) -> AsyncGenerator[Piece, None]:
    parser = SSEParser()
    is_done = False
    async for received in response.pieces():
        for event in parser.feed(received):
            if event.data == b"[DONE]":
                is_done = True
                continue
            chunk = _chunk(event.data)
            pieces = _read(chunk, facts)
            if pieces:
                facts.last_at_ns = now_ns()
                facts.first_at_ns = facts.first_at_ns or facts.last_at_ns
            for piece in pieces:
                yield piece
    if not is_done and not facts.finish_reason:
        raise AnswerFailed("the stream ended before the answer was complete; ask again")


def _chunk(event: bytes) -> dict[str, Any]:
    try:
        chunk = orjson.loads(event)
    except orjson.JSONDecodeError:
        chunk = None
    if not isinstance(chunk, dict):
        raise AnswerFailed(f"the server sent an event that is no JSON object: {event[:80]!r}")
    if "error" in chunk:
        raise AnswerFailed(_words(chunk))
    return chunk


def _read(chunk: dict[str, Any], facts: AnswerFacts) -> list[Piece]:
    """What the chunk adds to the answer; what it says about it goes into `facts`."""
    usage = chunk.get("usage")
    if isinstance(usage, dict):
        facts.num_prompt_tokens = _count(usage.get("prompt_tokens"))
        facts.num_output_tokens = _count(usage.get("completion_tokens"))
        details = usage.get("prompt_tokens_details")
        facts.num_cached_tokens = _count(details.get("cached_tokens")) if isinstance(details, dict) else None
    pieces: list[Piece] = []
    for choice in _objects(chunk.get("choices")):
        facts.finish_reason = str(choice.get("finish_reason") or facts.finish_reason)
        delta = choice.get("delta")
        for name in _TEXTS:
            text = delta.get(name) if isinstance(delta, dict) else None
            if isinstance(text, str) and text:
                pieces.append(Piece(text, is_reasoning=name.startswith("reasoning")))
    return pieces


def _objects(found: Any) -> list[dict[str, Any]]:
    return [entry for entry in found if isinstance(entry, dict)] if isinstance(found, list) else []


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _refusal(status: int, raw: bytes) -> str:
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError:
        body = None
    said = _words(body) if isinstance(body, dict) else raw[:MAX_ERROR_CHARS].decode(errors="replace")
    if status in (401, 403):
        return f"the server refused the API key (HTTP {status}); give the right one with --api-key or RELEVO_API_KEY"
    return f"the server refused (HTTP {status}): {said or 'it does not say why'}"


def _words(body: dict[str, Any]) -> str:
    """The message of an error object, whatever its shape."""
    error = body.get("error", body)
    return str(error.get("message", error) if isinstance(error, dict) else error)[:MAX_ERROR_CHARS]
