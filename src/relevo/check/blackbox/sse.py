"""The bytes of a stream. Sources: WHATWG HTML, "Server-sent events"; what client libraries make of it."""

from __future__ import annotations

import asyncio

from relevo.check.context import CheckContext
from relevo.check.exchange import parse_json
from relevo.check.sources import OPENAI_SDK, SSE, UNICODE
from relevo.check.texts import EMOJI_OPENING
from relevo.check.words import Level, Need, check

_CHAT = (Need.CHAT,)


@check(
    "sse.framing",
    "Every line is a field or a comment, and every event ends with an empty line.",
    why="Parsers drop an event that is not ended, and stumble over lines that are neither.",
    source=SSE,
    needs=_CHAT,
)
async def framing(ctx: CheckContext) -> None:
    answer = (await ctx.stream_chat()).ok()
    if answer.sse.problems:
        raise answer.fail("; ".join(answer.sse.problems[:5]), "a well-formed event stream")


@check(
    "sse.one_line_json",
    "Each event is one data line with one JSON object, or [DONE].",
    why="Most client libraries read streams line by line.",
    source=OPENAI_SDK,
    needs=_CHAT,
)
async def one_line_json(ctx: CheckContext) -> None:
    answer = (await ctx.stream_chat()).ok()
    for event in answer.sse.events:
        if event.num_data_lines != 1:
            raise answer.fail(f"an event of {event.num_data_lines} data lines", "one data line per event")
        if event.text.strip() == "[DONE]":
            continue
        try:
            is_object = isinstance(parse_json(event.text), dict)
        except ValueError:
            is_object = False
        if not is_object:
            raise answer.fail(f"an event is {event.text[:80]!r}", "a JSON object")


@check(
    "sse.not_cached",
    "A stream says Cache-Control: no-cache or no-store.",
    why="Proxies may otherwise store or collect it before they pass it on.",
    source=SSE,
    needs=_CHAT,
    level=Level.SHOULD,
)
async def not_cached(ctx: CheckContext) -> None:
    answer = (await ctx.stream_chat()).ok()
    control = answer.headers.get("cache-control", "").lower()
    if "no-cache" not in control and "no-store" not in control:
        raise answer.fail(f"cache-control is {control!r}", "no-cache or no-store")


@check(
    "sse.whole_characters",
    "A character of several bytes is never cut: a streamed text has no replacement characters the whole one has not.",
    why="Tokens end inside emoji and CJK characters; a cut one arrives as U+FFFD.",
    source=UNICODE,
)
async def whole_characters(ctx: CheckContext) -> None:
    path, body = ctx.prompt_body(EMOJI_OPENING)
    body |= ctx.logprob_fields(path)
    whole, streamed = (await ctx.post(path, body)).ok(), (await ctx.stream(path, body)).ok()
    if streamed.text().count("\ufffd") > whole.text().count("\ufffd"):
        raise streamed.fail(f"the stream's text is {streamed.text()!r}", repr(whole.text()))
    ctx.same_text(streamed, whole, "streamed and whole")


@check(
    "sse.own_chunks",
    "Two streams at once do not mix: each has chunks of its own id only.",
    why="A stream that carries another request's chunk gives a stranger's text away.",
    source=SSE,
    needs=_CHAT,
)
async def own_chunks(ctx: CheckContext) -> None:
    answers = await asyncio.gather(ctx.stream_chat(), ctx.stream_chat("Describe a sunrise over the mountains."))
    ids = [{str(chunk.get("id")) for chunk in answer.ok().chunks} for answer in answers]
    if len(ids[0]) != 1 or len(ids[1]) != 1 or ids[0] == ids[1]:
        raise answers[1].fail(f"ids are {ids}", "one id per stream, a different one for each")
