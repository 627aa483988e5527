"""Requests of the Responses and Messages APIs in short form, and what their streams are made of.

Owns the defaults: greedy, short, nothing stored unless a check says so. Judges only what all checks share.
"""

from __future__ import annotations

from typing import Any

import orjson

from relevo.check.context import CheckContext
from relevo.check.exchange import Answer, StreamAnswer
from relevo.check.texts import QUESTION

RESPONSES = "/v1/responses"
MESSAGES = "/v1/messages"
VERSION = "2023-06-01"  # of Anthropic's API
NUM_TOKENS = 24  # of an ordinary answer; 16 is the least that OpenAI takes


def response_body(ctx: CheckContext, input: Any = QUESTION, **fields: Any) -> dict[str, Any]:
    body = {"model": ctx.facts.model, "input": input, "max_output_tokens": NUM_TOKENS, "temperature": 0, "store": False}
    return {name: value for name, value in (body | fields).items() if value is not ...}


async def respond(ctx: CheckContext, input: Any = QUESTION, **fields: Any) -> Answer:
    return await ctx.post(RESPONSES, response_body(ctx, input, **fields))


async def stream_response(ctx: CheckContext, input: Any = QUESTION, **fields: Any) -> StreamAnswer:
    return (await ctx.stream(RESPONSES, response_body(ctx, input, **fields))).ok()


def message_body(ctx: CheckContext, content: Any = QUESTION, **fields: Any) -> dict[str, Any]:
    body = {
        "model": ctx.facts.model,
        "messages": [{"role": "user", "content": content}],
        "max_tokens": NUM_TOKENS,
        "temperature": 0,
    }
    return {name: value for name, value in (body | fields).items() if value is not ...}


async def message(ctx: CheckContext, content: Any = QUESTION, **fields: Any) -> Answer:
    return await post_message(ctx, message_body(ctx, content, **fields))


async def post_message(ctx: CheckContext, body: Any, path: str = MESSAGES, **headers: str) -> Answer:
    return await ctx.send("POST", path, orjson.dumps(body), **{"anthropic_version": VERSION} | headers)


async def stream_message(ctx: CheckContext, content: Any = QUESTION, **fields: Any) -> StreamAnswer:
    body = orjson.dumps(message_body(ctx, content, **fields) | {"stream": True})
    ctx.last = exchange = ctx.server.exchange("POST", MESSAGES, body, {"anthropic-version": VERSION})
    answer = await ctx.server.stream(exchange)
    assert answer is not None, "a stream without a limit is read to its end"
    return answer.ok()


def types_of(answer: StreamAnswer) -> list[str]:
    """The types of the events; pings, which may come at any time, left out."""
    types = [answer.typed(event.get("type"), str, "type of an event") for event in answer.chunks]
    return [type for type in types if type != "ping"]


def events_of(answer: StreamAnswer, *types: str) -> list[dict[str, Any]]:
    return [event for event in answer.chunks if event.get("type") in types]


def member(answer: Answer, value: Any, *path: str | int) -> Any:
    """A look into one event. Raises Mismatch if the member is not there."""
    for step in path:
        try:
            value = value[step]
        except (KeyError, IndexError, TypeError):
            raise answer.fail(f"no {'.'.join(map(str, path))}", "it is there") from None
    return value


def same_names(answer: StreamAnswer) -> None:
    """Raises Mismatch unless each event is named after its type."""
    named = [
        line.removeprefix("event:").strip()
        for line in answer.raw.decode(errors="replace").splitlines()
        if line.startswith("event:")
    ]
    types = [event.get("type") for event in answer.chunks]
    if named != types:
        raise answer.fail(f"names {named[:4]}..., types {types[:4]}...", "an 'event:' line with the type of each event")
