"""Requests that are wrong. The answer is a 4xx status with an error object, and no other client notices."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson

from relevo.check.context import CHAT, CheckContext
from relevo.check.exchange import Answer
from relevo.check.sources import HTTP, JSON, OPENAI_CHAT, OPENAI_ERRORS, VLLM
from relevo.check.texts import QUESTION
from relevo.check.words import Level, Need, check

_CHAT = (Need.CHAT,)
_NUM_BAD = 60
_NUM_GOOD = 6


def _check_refused(answer: Answer, *statuses: int) -> None:
    allowed = answer.status in statuses if statuses else 400 <= answer.status < 500
    if not allowed:
        wanted = " or ".join(map(str, statuses)) if statuses else "a 4xx status"
        raise answer.fail(f"HTTP {answer.status}: {answer.error_message}", wanted)


async def _refused_chat(ctx: CheckContext, **fields: Any) -> None:
    _check_refused(await ctx.chat(QUESTION, **({"max_tokens": 1} | fields)))


@check(
    "errors.object",
    "An error's body is {'error': {'message', 'type', ...}} with a message that says something.",
    why="SDKs show error.message; with another shape people see nothing but a status.",
    source=OPENAI_ERRORS,
    needs=_CHAT,
)
async def object_(ctx: CheckContext) -> None:
    answer = await ctx.chat(temperature="hot")
    _check_refused(answer)
    if not answer.at(str, "error", "message") or not answer.at(str, "error", "type"):
        raise answer.fail("message or type is empty", "a message and a type")


@check(
    "errors.param_and_code",
    "The error object also has param and code, null where there is nothing to say.",
    why="Typed clients require them.",
    source=OPENAI_ERRORS,
    needs=_CHAT,
    level=Level.SHOULD,
)
async def param_and_code(ctx: CheckContext) -> None:
    answer = await ctx.chat(temperature="hot")
    _check_refused(answer)
    answer.at(object, "error", "param")
    answer.at(object, "error", "code")


@check(
    "errors.not_json",
    "A body that is not JSON is a 400.",
    why="It is the client's mistake; a 5xx makes SDKs repeat it.",
    source=JSON,
    needs=_CHAT,
)
async def not_json(ctx: CheckContext) -> None:
    _check_refused(await ctx.post(CHAT, b'{"model": "m", "messages": ['), 400, 422)


@check(
    "errors.not_an_object",
    "A body that is JSON but no object is a 400.",
    why="As for a body that is not JSON.",
    source=OPENAI_CHAT,
    needs=_CHAT,
)
async def not_an_object(ctx: CheckContext) -> None:
    _check_refused(await ctx.post(CHAT, b"[1, 2, 3]"), 400, 422)


@check(
    "errors.nan",
    "NaN and Infinity in a body are a 400: JSON has no such numbers.",
    why="Taken over, they reach the sampler and poison a batch.",
    source=JSON,
    needs=_CHAT,
)
async def nan(ctx: CheckContext) -> None:
    body = b'{"model":"%s","max_tokens":1,"temperature":NaN,"messages":[{"role":"user","content":"hi"}]}'
    _check_refused(await ctx.post(CHAT, body % ctx.facts.model.encode()))


@check(
    "errors.invalid_utf8",
    "A body that is not UTF-8 is a 4xx error.",
    why="JSON is UTF-8; what is made of other bytes is a guess.",
    source=JSON,
    needs=_CHAT,
)
async def invalid_utf8(ctx: CheckContext) -> None:
    body = b'{"model":"%s","max_tokens":1,"messages":[{"role":"user","content":"\xff\xfe\x80"}]}'
    _check_refused(await ctx.post(CHAT, body % ctx.facts.model.encode()))


@check(
    "errors.deep_nesting",
    "A body nested 100,000 deep is a 4xx error.",
    why="Recursive parsers end with the process.",
    source=JSON,
    needs=_CHAT,
)
async def deep_nesting(ctx: CheckContext) -> None:
    _check_refused(await ctx.post(CHAT, b'{"messages":' + b"[" * 100_000 + b"]" * 100_000 + b"}"))
    (await ctx.chat(max_tokens=1)).ok()


@check(
    "errors.no_messages",
    "A chat without messages, or with none in the list, is a 4xx error.",
    why="Generated from nothing, the answer looks like one.",
    source=OPENAI_CHAT,
    needs=_CHAT,
)
async def no_messages(ctx: CheckContext) -> None:
    await _refused_chat(ctx, messages=...)
    await _refused_chat(ctx, messages=[])


@check(
    "errors.wrong_type",
    "A field of the wrong type is a 4xx error.",
    why="Ignored, it changes the meaning of the request.",
    source=OPENAI_CHAT,
    needs=_CHAT,
)
async def wrong_type(ctx: CheckContext) -> None:
    await _refused_chat(ctx, temperature="hot")
    await _refused_chat(ctx, messages="hello")
    await _refused_chat(ctx, max_tokens="many")


@check(
    "errors.response_format",
    "A response_format of a type that does not exist is a 4xx error.",
    why="Ignored, prose comes where a program waits for a structure.",
    source=OPENAI_CHAT,
    needs=_CHAT,
)
async def response_format(ctx: CheckContext) -> None:
    await _refused_chat(ctx, response_format={"type": "no_such_format"})


@check(
    "errors.wrong_message",
    "A message whose content is a number, or that has no role, is a 4xx error.",
    why="It reaches the chat template otherwise and fails there in words that say nothing to a client.",
    source=OPENAI_CHAT,
    needs=_CHAT,
)
async def wrong_message(ctx: CheckContext) -> None:
    await _refused_chat(ctx, messages=[{"role": "user", "content": 7}])
    await _refused_chat(ctx, messages=[{"content": "hello"}])


@check(
    "errors.unknown_model",
    "A model that is not served is a 404.",
    why="Another model's answer under that name goes unnoticed until quality or price is compared.",
    source=OPENAI_ERRORS,
    needs=_CHAT,
    level=Level.SHOULD,
)
async def unknown_model(ctx: CheckContext) -> None:
    _check_refused(await ctx.chat(model="no-such-model", max_tokens=1), 404)


@check(
    "errors.unknown_model_path",
    "GET /v1/models/{id} of a model that is not served is a 404.",
    why="Clients look there whether a model exists.",
    source=OPENAI_ERRORS,
)
async def unknown_model_path(ctx: CheckContext) -> None:
    _check_refused(await ctx.send("GET", "/v1/models/no-such-model"), 404)


@check(
    "errors.unknown_path",
    "An unknown path is a 404.",
    why="Clients find out by it what a server offers.",
    source=HTTP,
)
async def unknown_path(ctx: CheckContext) -> None:
    _check_refused(await ctx.send("POST", "/v1/no-such-endpoint", b"{}"), 404)


@check(
    "errors.wrong_method",
    "GET where only POST is served is a 405 (or 404).",
    why="Status codes are how tools tell a wrong address from a wrong request.",
    source=HTTP,
    needs=_CHAT,
)
async def wrong_method(ctx: CheckContext) -> None:
    _check_refused(await ctx.send("GET", CHAT), 404, 405)


@check(
    "errors.content_type",
    "A body declared as text/plain is a 4xx error.",
    why="Browsers send text/plain across origins without asking; a server that takes it can be driven by any web page.",
    source=VLLM,
    needs=_CHAT,
    level=Level.SHOULD,
)
async def content_type(ctx: CheckContext) -> None:
    body = orjson.dumps(ctx.chat_body(max_tokens=1))
    _check_refused(await ctx.send("POST", CHAT, body, Content_Type="text/plain"))


@check(
    "errors.internal_fields",
    "Fields that stacks use between their own processes are ignored or refused when a client sends them.",
    why="Half-filled handoff parameters have taken engines down and can name another request's blocks.",
    source="public reports on kv_transfer_params and bootstrap fields; see the guide",
    needs=_CHAT,
)
async def internal_fields(ctx: CheckContext) -> None:
    fields = {
        "kv_transfer_params": {"do_remote_prefill": True, "remote_block_ids": [0, 1, 2], "remote_engine_id": "x"},
        "bootstrap_host": "127.0.0.1",
        "bootstrap_port": 1,
        "bootstrap_room": 1,
        "routed_dp_rank": 99,
    }
    told = ctx.logprob_fields(CHAT)
    answer = await ctx.chat(**fields, **told)
    if answer.status != 200:
        _check_refused(answer)
    else:
        ctx.same_text(answer, (await ctx.chat(**told)).ok(), "with and without internal fields")


@check(
    "errors.authentication",
    "A wrong key is a 401 with an error object, and so is none.",
    why="SDKs raise AuthenticationError by the status.",
    source=OPENAI_ERRORS,
    needs=(Need.CHAT, Need.API_KEY),
)
async def authentication(ctx: CheckContext) -> None:
    body = orjson.dumps(ctx.chat_body(max_tokens=1))
    for value in ("Bearer wrong-key", ""):
        answer = await ctx.send("POST", CHAT, body, Content_Type="application/json", Authorization=value)
        _check_refused(answer, 401)
        answer.at(str, "error", "message")


@check(
    "errors.good_beside_bad",
    "Good requests are answered while sixty malformed ones arrive beside them.",
    why="Circuit breakers that count client errors take healthy workers out.",
    source="public reports on circuit breakers; see the guide",
    needs=_CHAT,
)
async def good_beside_bad(ctx: CheckContext) -> None:
    bad_bodies = (b"{", b"[]", b'{"messages": 3}', b'{"messages": [], "max_tokens": "x"}', b"\xff")
    bad = [ctx.post(CHAT, bad_bodies[number % len(bad_bodies)]) for number in range(_NUM_BAD)]
    good = [ctx.chat(max_tokens=4) for _ in range(_NUM_GOOD)]
    answers = await asyncio.gather(*bad, *good)
    for answer in answers[:_NUM_BAD]:
        _check_refused(answer)
    for answer in answers[_NUM_BAD:]:
        answer.ok()
