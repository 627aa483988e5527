"""Streams of Anthropic's Messages API: their events, their blocks, and how they agree with whole answers."""

from __future__ import annotations

from relevo.check.api_calls import events_of, member, message, same_names, stream_message, types_of
from relevo.check.blackbox.messages import FORCED, num_input, stop_within, text_of
from relevo.check.calls import ASKED, NAME, PARAMETERS, must_fit
from relevo.check.context import CheckContext
from relevo.check.exchange import StreamAnswer
from relevo.check.sources import ANTHROPIC
from relevo.check.words import Need, Skip, check

_NEEDS = (Need.MESSAGES,)


def _text(answer: StreamAnswer) -> str:
    deltas = [member(answer, event, "delta") for event in events_of(answer, "content_block_delta")]
    return "".join(delta.get("text", "") for delta in deltas if delta.get("type") == "text_delta")


@check(
    "messages.event_order",
    "message_start, blocks that are started, grow and stop one after the other, message_delta, message_stop.",
    why="SDKs build the message along these events; a delta of a block that is not open is an exception.",
    source=ANTHROPIC,
    needs=_NEEDS,
)
async def event_order(ctx: CheckContext) -> None:
    answer = await stream_message(ctx)
    types = types_of(answer)
    if types[:1] != ["message_start"] or types[-2:] != ["message_delta", "message_stop"]:
        raise answer.fail(f"events begin with {types[:1]} and end with {types[-2:]}", "message_start ... message_stop")
    current: int | None = None
    num_blocks = 0
    for event in events_of(answer, "content_block_start", "content_block_delta", "content_block_stop"):
        place, kind = member(answer, event, "index"), event["type"]
        if kind == "content_block_start":
            if current is not None or place != num_blocks:
                raise answer.fail(f"block {place} is started while {current} is open", "blocks in turn, from 0")
            current, num_blocks = place, num_blocks + 1
        elif place != current:
            raise answer.fail(f"{kind} of block {place}, open is {current}", "events of the block that is open")
        elif kind == "content_block_stop":
            current = None
    if current is not None or not num_blocks:
        raise answer.fail(f"{num_blocks} blocks, {current} is not stopped", "each block is stopped")


@check(
    "messages.event_names",
    "Each event is named after its type.",
    why="SDKs choose by the name of an event, and skip those without.",
    source=ANTHROPIC,
    needs=_NEEDS,
)
async def event_names(ctx: CheckContext) -> None:
    same_names(await stream_message(ctx))


@check(
    "messages.start",
    "message_start has an empty message, without a stop_reason, with the prompt's tokens in its usage.",
    why="Clients show how full the context is from the first event on.",
    source=ANTHROPIC,
    needs=_NEEDS,
)
async def start(ctx: CheckContext) -> None:
    whole = (await message(ctx)).ok()
    answer = await stream_message(ctx)
    begun = answer.typed(member(answer, answer.chunks[0], "message"), dict, "message")
    if begun.get("content") != [] or begun.get("stop_reason") is not None:
        raise answer.fail(f"content {begun.get('content')!r}, stop_reason {begun.get('stop_reason')!r}", "[] and null")
    told = num_input(answer, answer.typed(begun.get("usage"), dict, "usage"))
    if told != num_input(whole):
        raise answer.fail(f"{told} tokens of input in message_start, {num_input(whole)} in a whole answer", "as many")


@check(
    "messages.end",
    "message_delta has stop_reason, stop_sequence and the tokens of the answer.",
    why="It is the only place of a stream where they are.",
    source=ANTHROPIC,
    needs=_NEEDS,
)
async def end(ctx: CheckContext) -> None:
    stop = stop_within(text_of((await message(ctx)).ok()))
    answer = await stream_message(ctx, stop_sequences=[stop])
    told = events_of(answer, "message_delta")[-1:]
    if not told or member(answer, told[0], "delta", "stop_reason") != "stop_sequence":
        raise answer.fail(f"message_delta is {told}", "stop_reason 'stop_sequence'")
    if member(answer, told[0], "delta", "stop_sequence") != stop:
        raise answer.fail(f"stop_sequence is {told[0]['delta']['stop_sequence']!r}", repr(stop))
    if answer.typed(member(answer, told[0], "usage", "output_tokens"), int, "usage.output_tokens") <= 0:
        raise answer.fail(f"usage is {told[0]['usage']}", "the tokens of the answer")
    if stop in _text(answer):
        raise answer.fail(f"the text is {_text(answer)!r}", f"no {stop!r} in it")


@check(
    "messages.stream_equals_whole",
    "A greedy answer says the same streamed and whole.",
    why="Programs change between the two without another thought.",
    source=ANTHROPIC,
    needs=_NEEDS,
)
async def stream_equals_whole(ctx: CheckContext) -> None:
    whole = text_of((await message(ctx)).ok())
    answer = await stream_message(ctx)
    if _text(answer) == whole:
        return
    if text_of((await message(ctx)).ok()) != whole:
        raise Skip("the same request, not streamed, was answered with two texts")
    raise answer.fail(f"streamed {_text(answer)!r}, whole {whole!r}", "equal texts")


@check(
    "messages.call_stream",
    "A streamed tool_use starts with an empty input, and its input_json_deltas join to JSON of the tool's schema.",
    why="SDKs join the deltas and ignore what was in the start.",
    source=ANTHROPIC,
    needs=(Need.MESSAGES, Need.MESSAGES_CALL),
)
async def call_stream(ctx: CheckContext) -> None:
    answer = await stream_message(ctx, ASKED, **FORCED)
    starts = [
        event
        for event in events_of(answer, "content_block_start")
        if member(answer, event, "content_block", "type") == "tool_use"
    ]
    if not starts or starts[0]["content_block"].get("name") != NAME or not starts[0]["content_block"].get("id"):
        raise answer.fail(f"tool_use blocks begin as {starts}", f"one of {NAME} with an id")
    if starts[0]["content_block"].get("input") != {}:
        raise answer.fail(f"input is {starts[0]['content_block'].get('input')!r} at the start", "{}")
    deltas = [e for e in events_of(answer, "content_block_delta") if e.get("index") == starts[0].get("index")]
    joined = "".join(member(answer, event, "delta", "partial_json") for event in deltas)
    must_fit(answer, joined, PARAMETERS, "input")
    if (reason := member(answer, events_of(answer, "message_delta")[-1], "delta", "stop_reason")) != "tool_use":
        raise answer.fail(f"stop_reason is {reason!r}", "'tool_use'")
