"""Streams say the same as whole answers, in the chunks that clients expect."""

from __future__ import annotations

from relevo.check.context import NUM_TOKENS, CheckContext
from relevo.check.exchange import Answer, StreamAnswer
from relevo.check.sources import OPENAI_COMPLETIONS, OPENAI_SDK, OPENAI_STREAM, SSE
from relevo.check.texts import QUESTION
from relevo.check.words import Level, Need, check

_CHAT = (Need.CHAT,)
_COMPLETIONS = (Need.COMPLETIONS,)
_USAGE = {"include_usage": True}
_SLOW_S = 0.5  # a stream that takes less says nothing about buffering
_EARLY_FRACTION = 0.7
_NUM_TRIES = 3


@check(
    "stream.content_type",
    "A stream is text/event-stream.",
    why="Clients and proxies recognise a stream by it; proxies buffer anything else.",
    source=SSE,
    needs=_CHAT,
)
async def content_type(ctx: CheckContext) -> None:
    answer = (await ctx.stream_chat()).ok()
    if not answer.headers.get("content-type", "").startswith("text/event-stream"):
        raise answer.fail(f"content-type is {answer.headers.get('content-type')!r}", "text/event-stream")


@check(
    "stream.chunks",
    "Every chunk has the same id and created, the model, and object 'chat.completion.chunk'.",
    why="Clients put an answer together from chunks of one id.",
    source=OPENAI_STREAM,
    needs=_CHAT,
)
async def chunks(ctx: CheckContext) -> None:
    answer = (await ctx.stream_chat()).ok()
    if not answer.chunks:
        raise answer.fail("no chunks", "chunks")
    kinds_of = {"id": str, "created": int, "model": str}
    seen: set[tuple[object, ...]] = {
        tuple(answer.typed(chunk.get(name), kind, f"{name} of a chunk") for name, kind in kinds_of.items())
        for chunk in answer.chunks
    }
    if len(seen) != 1:
        raise answer.fail(f"(id, created, model) are {sorted(map(str, seen))}", "one of each, the same in all chunks")
    kinds = {str(chunk.get("object")) for chunk in answer.chunks}
    if kinds != {"chat.completion.chunk"}:
        raise answer.fail(f"object is {sorted(kinds)}", "object 'chat.completion.chunk'")


@check(
    "stream.role",
    "The role 'assistant' comes once, in the first chunk of the choice.",
    why="Clients start a message at the role; a second one starts a second message.",
    source=OPENAI_STREAM,
    needs=_CHAT,
)
async def role(ctx: CheckContext) -> None:
    answer = (await ctx.stream_chat()).ok()
    roles = [delta.get("role") for delta in answer.deltas()]
    if not roles or roles[0] != "assistant":
        raise answer.fail(f"the first chunk's role is {roles[0] if roles else None!r}", "role 'assistant'")
    if any(roles[1:]):
        raise answer.fail(f"{sum(map(bool, roles))} chunks name a role", "one chunk")


@check(
    "stream.finish",
    "Each choice has one finish_reason, and no text comes after it.",
    why="Clients close the message there; what follows is lost.",
    source=OPENAI_STREAM,
    needs=_CHAT,
)
async def finish(ctx: CheckContext) -> None:
    answer = (await ctx.stream_chat()).ok()
    answer.finish_reason()
    parts = answer.choice_parts()
    at = next(number for number, part in enumerate(parts) if part.get("finish_reason") is not None)
    if any(delta.get("content") for delta in answer.deltas()[at + 1 :]):
        raise answer.fail("text after the finish_reason", "no text after it")


@check(
    "stream.done",
    "The stream ends with one event [DONE], the last one.",
    why="Without it clients cannot tell a whole answer from a cut one.",
    source=OPENAI_STREAM,
    needs=_CHAT,
)
async def done(ctx: CheckContext) -> None:
    answer = (await ctx.stream_chat()).ok()
    if answer.num_done != 1:
        raise answer.fail(f"{answer.num_done} events [DONE]", "one")
    if answer.sse.events[-1].text.strip() != "[DONE]":
        raise answer.fail("events after [DONE]", "[DONE] last")


@check(
    "stream.ends",
    "The connection's body ends properly after the last event.",
    why="A body that breaks off, or never ends, raises in clients although they have the whole answer.",
    source=SSE,
    needs=_CHAT,
)
async def ends(ctx: CheckContext) -> None:
    answer = (await ctx.stream_chat()).ok()
    if answer.was_cut:
        raise answer.fail("the connection broke", "a properly ended body")


@check(
    "stream.equals_whole",
    "The text and finish_reason of a streamed chat equal those of the same request not streamed.",
    why="Streaming is a way to deliver an answer, not another answer.",
    source=OPENAI_STREAM,
    needs=_CHAT,
)
async def equals_whole(ctx: CheckContext) -> None:
    fields = ctx.logprob_fields("/v1/chat/completions")
    _check_equal(ctx, (await ctx.stream_chat(**fields)).ok(), (await ctx.chat(**fields)).ok())


@check(
    "stream.completion_equals_whole",
    "The text and finish_reason of a streamed completion equal those of the same request not streamed.",
    why="Streaming is a way to deliver an answer, not another answer.",
    source=OPENAI_COMPLETIONS,
    needs=_COMPLETIONS,
)
async def completion_equals_whole(ctx: CheckContext) -> None:
    fields = ctx.logprob_fields("/v1/completions")
    _check_equal(ctx, (await ctx.stream_complete(**fields)).ok(), (await ctx.complete(**fields)).ok())


def _check_equal(ctx: CheckContext, streamed: StreamAnswer, whole: Answer) -> None:
    ctx.same_text(streamed, whole, "streamed and whole")
    if streamed.finish_reason() != whole.finish_reason():
        raise streamed.fail(f"finish_reason is {streamed.finish_reason()!r}", f"{whole.finish_reason()!r} as whole")


@check(
    "stream.short_equals_whole",
    "With max_tokens 1, 2 and 3 the streamed text equals the whole text.",
    why="Where the first token is computed elsewhere than the rest it gets lost or doubled.",
    source=OPENAI_STREAM,
    needs=_CHAT,
)
async def short_equals_whole(ctx: CheckContext) -> None:
    for max_tokens in (1, 2, 3):
        fields = ctx.logprob_fields("/v1/chat/completions") | {"max_tokens": max_tokens}
        _check_equal(ctx, (await ctx.stream_chat(**fields)).ok(), (await ctx.chat(**fields)).ok())


@check(
    "stream.usage_last",
    "With include_usage the last chunk has empty choices and usage; the others have no usage but null.",
    why="It is the only place where a streaming client learns its bill.",
    source=OPENAI_STREAM,
    needs=_CHAT,
)
async def usage_last(ctx: CheckContext) -> None:
    answer = (await ctx.stream_chat(stream_options=_USAGE)).ok()
    if not answer.chunks or not answer.chunks[-1].get("usage"):
        raise answer.fail("the last chunk has no usage", "usage in the last chunk")
    if answer.chunks[-1].get("choices") != []:
        raise answer.fail("the chunk with the usage has choices", "choices []")
    if any(chunk.get("usage") for chunk in answer.chunks[:-1]):
        raise answer.fail("an earlier chunk has usage", "usage in the last chunk only")


@check(
    "stream.usage_equals_whole",
    "The usage of a stream equals that of the same request not streamed.",
    why="The bill does not depend on the way of delivery.",
    source=OPENAI_STREAM,
    needs=_CHAT,
)
async def usage_equals_whole(ctx: CheckContext) -> None:
    streamed, whole = (await ctx.stream_chat(stream_options=_USAGE)).ok(), (await ctx.chat()).ok()
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        if streamed.usage(name) != whole.usage(name):
            raise streamed.fail(f"usage.{name} is {streamed.usage(name)}", f"{whole.usage(name)} as whole")


@check(
    "stream.choices_always",
    "Without include_usage every chunk has a choice.",
    why="Many clients read choices[0] of every chunk and raise on an empty list.",
    source=OPENAI_SDK,
    needs=_CHAT,
)
async def choices_always(ctx: CheckContext) -> None:
    answer = (await ctx.stream_chat()).ok()
    if not all(chunk.get("choices") for chunk in answer.chunks):
        raise answer.fail("a chunk without choices", "a choice in every chunk")


@check(
    "stream.incremental",
    "Text arrives as it is generated, in many chunks over the whole time.",
    why="A buffered stream makes people wait as long as no stream at all.",
    source=OPENAI_STREAM,
    needs=_CHAT,
)
async def incremental(ctx: CheckContext) -> None:
    answer = (await ctx.stream_chat(stream_options=_USAGE)).ok()
    num_tokens, num_chunks = answer.usage("completion_tokens"), len(answer.pieces_of_text())
    if num_chunks < num_tokens / 4:
        raise answer.fail(f"{num_tokens} tokens in {num_chunks} chunks", "at most four tokens a chunk on average")
    for _ in range(_NUM_TRIES):
        times = [answer.event_at_s(n) for n, event in enumerate(answer.sse.events) if "content" in event.text]
        early_s, end_s = (times[len(times) // 4], times[-1]) if times else (0.0, 0.0)
        if end_s <= _SLOW_S or early_s <= _EARLY_FRACTION * end_s:
            return
        answer = (await ctx.stream_chat(stream_options=_USAGE)).ok()  # once may be a pause of the machine
    raise answer.fail(
        f"a quarter of the text had come only after {early_s:.2f} s of {end_s:.2f} s, {_NUM_TRIES} times",
        "text that arrives over the whole time",
    )


@check(
    "stream.error_is_a_status",
    "A request that is wrong is answered with a 4xx status also when it asks for a stream.",
    why="Inside a stream with status 200 an error passes for an answer.",
    source=OPENAI_SDK,
    needs=_CHAT,
)
async def error_is_a_status(ctx: CheckContext) -> None:
    answer = await ctx.stream("/v1/chat/completions", ctx.chat_body(temperature="hot"))
    if not 400 <= answer.status < 500:
        raise answer.fail(f"HTTP {answer.status}", "a 4xx status")


@check(
    "stream.length",
    "A stream that ends by max_tokens says finish_reason 'length'.",
    why="Clients continue an answer that was cut and leave one that ended.",
    source=OPENAI_STREAM,
    needs=_CHAT,
)
async def length(ctx: CheckContext) -> None:
    answer = (await ctx.stream_chat(QUESTION, max_tokens=5)).ok()
    if answer.finish_reason() != "length":
        raise answer.fail(f"finish_reason is {answer.finish_reason()!r} after 5 tokens of a story", "'length'")


@check(
    "stream.completion_chunks",
    "Chunks of a streamed completion have object 'text_completion' and text.",
    why="SDKs build typed objects from them.",
    source=OPENAI_COMPLETIONS,
    needs=_COMPLETIONS,
    level=Level.MUST,
)
async def completion_chunks(ctx: CheckContext) -> None:
    answer = (await ctx.stream_complete()).ok()
    kinds = {str(chunk.get("object")) for chunk in answer.chunks}
    if kinds != {"text_completion"}:
        raise answer.fail(f"object is {sorted(kinds)}", "object 'text_completion'")
    if len(answer.pieces_of_text()) < NUM_TOKENS / 4:
        raise answer.fail(f"{len(answer.pieces_of_text())} chunks of text", "text in several chunks")
