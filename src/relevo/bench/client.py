"""The load generator's client: stamps every chunk of a stream with the monotonic clock.

Knows the protocol, not the load: when requests are sent is decided by `bench.load`. Source: the OpenAI API reference
(chat completions, completions).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import orjson

from relevo.bench.records import ClientRecord, Endpoint, PlannedRequest
from relevo.client.http import CannotConnect, ConnectionBroken, Response
from relevo.client.server import OpenAIServer
from relevo.client.sse import SSEParser

PATHS = {Endpoint.CHAT: "/v1/chat/completions", Endpoint.COMPLETIONS: "/v1/completions"}
MAX_ERROR_DETAIL = 300  # characters kept of an error body; arbitrary


class OpenAIClient(OpenAIServer):
    """A server under load."""

    async def stream(
        self,
        planned: PlannedRequest,
        record: ClientRecord,
        *,
        model: str,
        endpoint: Endpoint,
        extra: dict[str, Any],
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Send one streaming request and fill `record`; errors are recorded, never raised (cancellation passes)."""
        body = orjson.dumps(request_body(planned, model, endpoint, extra))
        request = self.request("POST", PATHS[endpoint], body, headers)
        record.sent_at_ns = time.monotonic_ns()
        try:
            async with self.open(request) as response:
                if response.status != 200:
                    detail = (await response.read()).decode(errors="replace")[:MAX_ERROR_DETAIL]
                    _fail(record, f"http_{response.status}", detail)
                    return
                await _read_stream(response, record)
        except TimeoutError as error:
            _fail(record, "timeout", str(error))
        except CannotConnect as error:
            _fail(record, "connect", str(error))
        except ConnectionBroken as error:
            _fail(record, "disconnected", str(error))


def request_body(planned: PlannedRequest, model: str, endpoint: Endpoint, extra: dict[str, Any]) -> dict[str, Any]:
    """The JSON of a streaming request. `extra` fields go in last and win."""
    body: dict[str, Any] = {"model": model, "stream": True, "stream_options": {"include_usage": True}}
    if endpoint is Endpoint.CHAT:
        body |= {"messages": [{"role": "user", "content": planned.prompt}], "max_completion_tokens": planned.max_tokens}
    else:
        body |= {"prompt": planned.prompt, "max_tokens": planned.max_tokens}
    return body | extra


async def _read_stream(response: Response, record: ClientRecord) -> None:
    parser = SSEParser()
    done = False
    async for piece in response.pieces():
        now_ns = time.monotonic_ns()
        for event in parser.feed(piece):
            if event.data == b"[DONE]":
                done = True
            else:
                _take_event(event.data, record, now_ns)
    if record.error is not None:
        return
    if not done and record.finish_reason is None:
        _fail(record, "truncated", "the stream ended without a finish_reason")
        return
    record.finished_at_ns = record.chunk_at_ns[-1] if record.chunk_at_ns else time.monotonic_ns()
    record.num_output_tokens = record.num_output_tokens or len(record.chunk_at_ns)


def _take_event(event: bytes, record: ClientRecord, now_ns: int) -> None:
    try:
        chunk = orjson.loads(event)
    except orjson.JSONDecodeError:
        _fail(record, "stream_error", f"not JSON: {event[:MAX_ERROR_DETAIL]!r}")
        return
    if not isinstance(chunk, dict) or "error" in chunk:
        _fail(record, "stream_error", event[:MAX_ERROR_DETAIL].decode(errors="replace"))
        return
    for choice in chunk.get("choices") or ():
        if _has_output(choice):
            record.chunk_at_ns.append(now_ns)
            if record.text is not None:
                record.text.append(choice.get("text") or (choice.get("delta") or {}).get("content") or "")
        record.finish_reason = choice.get("finish_reason") or record.finish_reason
    usage = chunk.get("usage")
    if usage:
        record.num_prompt_tokens = usage.get("prompt_tokens")
        record.num_output_tokens = usage.get("completion_tokens") or 0
        record.num_cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0


def _has_output(choice: dict[str, Any]) -> bool:
    """Whether a chunk brings output; the chunk that only names the role does not."""
    delta = choice.get("delta") or choice
    fields = ("content", "text", "reasoning_content", "reasoning", "tool_calls", "token_ids")
    return any(delta.get(name) for name in fields) or bool(choice.get("token_ids"))


def _fail(record: ClientRecord, kind: str, detail: str) -> None:
    record.error, record.error_detail, record.failed_at_ns = kind, detail, time.monotonic_ns()
