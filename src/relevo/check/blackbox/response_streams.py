"""Streams of the Responses API: their events, and how these agree with each other and with the response at the end."""

from __future__ import annotations

from typing import Any

from relevo.check.api_calls import events_of, member, respond, same_names, stream_response, types_of
from relevo.check.blackbox.responses import FORCED, call_in, text_of
from relevo.check.calls import ASKED
from relevo.check.context import CheckContext
from relevo.check.exchange import StreamAnswer
from relevo.check.sources import OPENAI_RESPONSES
from relevo.check.words import Need, Skip, check

_NEEDS = (Need.RESPONSES,)
_LAST = ("response.completed", "response.incomplete")


def _final(answer: StreamAnswer) -> dict[str, Any]:
    """The response of the last event."""
    types = types_of(answer)
    if not types or types[-1] not in _LAST or sum(type in _LAST for type in types) != 1:
        raise answer.fail(
            f"the last event is {types[-1:]}", "response.completed or response.incomplete, once, at the end"
        )
    return answer.typed(member(answer, events_of(answer, *_LAST)[-1], "response"), dict, "response")


@check(
    "responses.event_order",
    "A stream begins with response.created; items and parts are added before their deltas, done after them, each once.",
    why="SDKs build the answer along these events; a delta of what was not added is an exception.",
    source=OPENAI_RESPONSES,
    needs=_NEEDS,
)
async def event_order(ctx: CheckContext) -> None:
    answer = await stream_response(ctx)
    _final(answer)
    if types_of(answer)[0] != "response.created":
        raise answer.fail(f"the first event is {types_of(answer)[0]}", "response.created")
    open_items: list[int] = []
    for event in answer.chunks:
        kind, place = event.get("type", ""), event.get("output_index")
        if kind == "response.output_item.added":
            open_items.append(member(answer, event, "output_index"))
        elif kind == "response.output_item.done":
            if place not in open_items:
                raise answer.fail(f"item {place} is done and not open", "added before done")
            open_items.remove(place)
        elif place is not None and place not in open_items:
            raise answer.fail(f"{kind} of item {place}, which is not open", "events of an item between added and done")
    if open_items:
        raise answer.fail(f"items {open_items} are never done", "output_item.done for each")


@check(
    "responses.sequence_numbers",
    "sequence_number grows by one with each event, and events are named after their types.",
    why="Clients tell by it whether something was lost.",
    source=OPENAI_RESPONSES,
    needs=_NEEDS,
)
async def sequence_numbers(ctx: CheckContext) -> None:
    answer = await stream_response(ctx)
    numbers = [event.get("sequence_number") for event in answer.chunks]
    first = answer.typed(numbers[0] if numbers else None, int, "sequence_number")
    if numbers != list(range(first, first + len(numbers))):
        raise answer.fail(f"sequence numbers are {numbers[:8]}...", "each one more than the one before")
    same_names(answer)


@check(
    "responses.same_items",
    "Ids and places of items are the same in all events and in the response at the end.",
    why="Clients put together by id and place what belongs to one item.",
    source=OPENAI_RESPONSES,
    needs=_NEEDS,
)
async def same_items(ctx: CheckContext) -> None:
    answer = await stream_response(ctx)
    final = _final(answer)
    ids = [item.get("id") for item in final["output"]]
    for event in answer.chunks:
        id = event.get("item_id") or (event.get("item") or {}).get("id")
        place = event.get("output_index")
        if place is not None and (not 0 <= place < len(ids) or id != ids[place]):
            raise answer.fail(f"{event.get('type')} of item {id!r} at {place}", f"the ids of the response: {ids}")
    created = member(answer, answer.chunks[0], "response", "id")
    if created != final.get("id"):
        raise answer.fail(f"the response is {created!r} first and {final.get('id')!r} at the end", "one id")


@check(
    "responses.deltas_join",
    "Deltas join to the text of output_text.done and of the response at the end.",
    why="Clients show the deltas and store the response.",
    source=OPENAI_RESPONSES,
    needs=_NEEDS,
)
async def deltas_join(ctx: CheckContext) -> None:
    answer = await stream_response(ctx)
    joined = "".join(member(answer, event, "delta") for event in events_of(answer, "response.output_text.delta"))
    done = "".join(member(answer, event, "text") for event in events_of(answer, "response.output_text.done"))
    messages = [item for item in _final(answer)["output"] if item.get("type") == "message"]
    final = "".join(part.get("text", "") for item in messages for part in item["content"])
    if not joined or not joined == done == final:
        raise answer.fail(f"joined {joined!r}, done {done!r}, at the end {final!r}", "the same text three times")


@check(
    "responses.stream_equals_whole",
    "A greedy answer says the same streamed and whole.",
    why="Programs change between the two without another thought.",
    source=OPENAI_RESPONSES,
    needs=_NEEDS,
)
async def stream_equals_whole(ctx: CheckContext) -> None:
    whole = text_of((await respond(ctx)).ok())
    answer = await stream_response(ctx)
    joined = "".join(member(answer, event, "delta") for event in events_of(answer, "response.output_text.delta"))
    if joined == whole:
        return
    if text_of((await respond(ctx)).ok()) != whole:
        raise Skip("the same request, not streamed, was answered with two texts")
    raise answer.fail(f"streamed {joined!r}, whole {whole!r}", "equal texts")


@check(
    "responses.incomplete_event",
    "A stream that max_output_tokens ends closes with response.incomplete, which has the usage.",
    why="Codex and other agents take response.completed for an answer that is whole.",
    source=OPENAI_RESPONSES,
    needs=_NEEDS,
)
async def incomplete_event(ctx: CheckContext) -> None:
    answer = await stream_response(ctx)
    final = _final(answer)
    num_output = answer.typed(member(answer, final, "usage", "output_tokens"), int, "usage.output_tokens")
    if num_output < 24:
        raise Skip("the answer ended before max_output_tokens")
    if types_of(answer)[-1] != "response.incomplete" or final.get("status") != "incomplete":
        raise answer.fail(f"{types_of(answer)[-1]}, status {final.get('status')!r}", "response.incomplete")


@check(
    "responses.call_stream",
    "Deltas of a forced call join to the arguments of its item, and its call_id is the same from added to the end.",
    why="The result is sent back under the call_id that the client saw first.",
    source=OPENAI_RESPONSES,
    needs=(Need.RESPONSES, Need.RESPONSES_CALL),
)
async def call_stream(ctx: CheckContext) -> None:
    answer = await stream_response(ctx, ASKED, **FORCED)
    call = call_in(answer, _final(answer)["output"])
    deltas = events_of(answer, "response.function_call_arguments.delta")
    joined = "".join(member(answer, event, "delta") for event in deltas if event.get("item_id") == call["id"])
    if joined != call["arguments"]:
        raise answer.fail(f"deltas join to {joined!r}", f"{call['arguments']!r}, as in the item")
    told = [
        item.get("call_id")
        for item in (
            member(answer, e, "item")
            for e in events_of(answer, "response.output_item.added", "response.output_item.done")
        )
        if item.get("id") == call["id"]
    ]
    if told != 2 * [call["call_id"]]:
        raise answer.fail(f"call_id is {told} in added and done", f"{call['call_id']!r}, as at the end")
