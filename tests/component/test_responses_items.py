"""Answers of the Responses API as items, whole and streamed: places, ids, numbers, and how each may end."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import httpx
import orjson
import pytest
from answers_of_items import FUNCTION, Marked, events_of, respond, stream, without_ids
from scripted_gateway import MODEL, Hang, rig, says

from relevo.core.errors import StepFailed
from relevo.core.request import FinishReason

WRITTEN = '?hm.Hi @tide {"port":"Brest"}@tide {"port":"Cork"}'


def kinds(events: Sequence[dict[str, Any]]) -> list[str]:
    """Their types, repeated ones once."""
    found = [event["type"].removeprefix("response.") for event in events]
    return [kind for before, kind in zip(["", *found], found, strict=False) if kind != before]


async def test_a_text_has_the_events_of_the_official_api_in_their_order() -> None:
    """Red if an event was missing, came twice or at another place."""
    events = await stream(rig(says("Hello")))
    assert kinds(events) == [
        *("created", "in_progress", "output_item.added", "content_part.added", "output_text.delta"),
        *("output_text.done", "content_part.done", "output_item.done", "completed"),
    ]
    response = events[-1]["response"]
    assert response["status"] == "completed"
    assert response["output"][0]["content"] == [
        {"type": "output_text", "text": "Hello", "annotations": [], "logprobs": []}
    ]


async def test_reasoning_text_and_two_calls_are_items_in_their_order() -> None:
    """Red if deltas came for an item that was not added, or `output_index` was not the place in `output`."""
    events = await stream(rig(says(WRITTEN), make_parser=Marked), tools=[FUNCTION])
    output = events[-1]["response"]["output"]
    assert [item["type"] for item in output] == ["reasoning", "message", "function_call", "function_call"]
    assert output[0]["content"] == [{"type": "reasoning_text", "text": "hm"}]
    assert output[0]["summary"] == []
    assert [(item["name"], item["arguments"], item["call_id"]) for item in output[2:]] == [
        ("tide", '{"port":"Brest"}', "call_0"),
        ("tide", '{"port":"Cork"}', "call_1"),
    ]
    assert len({item["id"] for item in output}) == 4


@pytest.mark.parametrize("tokens_per_step", [1, 7, 100])
async def test_a_whole_response_is_what_the_stream_ends_with(tokens_per_step: int) -> None:
    """However many tokens come at once."""
    script = says(WRITTEN + ".bye!no.so", tokens_per_step=tokens_per_step)
    whole = await respond(rig(script, make_parser=Marked), tools=[FUNCTION])
    streamed = (await stream(rig(script, make_parser=Marked), tools=[FUNCTION]))[-1]["response"]
    assert without_ids(whole) == without_ids(streamed)
    assert [part["type"] for part in whole["output"][-1]["content"]] == ["output_text", "refusal", "output_text"]


async def test_an_answer_of_nothing_is_a_message_of_no_text() -> None:
    for response in (await respond(rig(says(""))), (await stream(rig(says(""))))[-1]["response"]):
        (message,) = response["output"]
        assert (message["type"], message["content"][0]["text"]) == ("message", "")


@pytest.mark.parametrize(
    ("written", "kind", "statuses"),
    [
        ("half a te", "message", ["incomplete"]),
        ("?half a tho", "reasoning", ["incomplete"]),
        ('.x@tide {"port":"Br', "function_call", ["completed", "incomplete"]),
        ('@tide {}@tide {"po', "function_call", ["completed", "incomplete"]),
        ('@tide {"port":"Brest"}', "function_call", ["completed"]),
    ],
)
async def test_a_limit_of_tokens_ends_with_an_incomplete_response(written: str, kind: str, statuses: list[str]) -> None:
    """Red if the last event was `response.completed`, an unfinished call looked finished, or usage was missing."""
    script = says(written, end=FinishReason.LENGTH)
    events = await stream(rig(script, make_parser=Marked), tools=[FUNCTION], max_output_tokens=30)
    assert events[-1]["type"] == "response.incomplete"
    streamed = events[-1]["response"]
    whole = await respond(rig(script, make_parser=Marked), tools=[FUNCTION], max_output_tokens=30)
    assert without_ids(whole) == without_ids(streamed)
    assert (whole["status"], whole["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert whole["completed_at"] is None
    assert [item["status"] for item in whole["output"]] == statuses
    assert whole["output"][-1]["type"] == kind
    assert whole["usage"]["output_tokens"] == len(written)


async def test_usage_counts_cached_tokens_in_the_input_and_reasoning_in_the_output() -> None:
    script = says("?abc.de")
    for response in (
        await respond(rig(script, num_cached=4, make_parser=Marked)),
        (await stream(rig(script, num_cached=4, make_parser=Marked)))[-1]["response"],
    ):
        usage = response["usage"]
        assert usage["input_tokens_details"] == {"cached_tokens": 4, "cache_write_tokens": 0}
        assert usage["output_tokens"] == len("?abc.de") + 1  # and the end token
        assert usage["output_tokens_details"] == {"reasoning_tokens": 4}
        assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]


async def test_a_failure_in_the_middle_is_the_last_event_and_leaves_no_gap() -> None:
    """Red if the stream just ended, or looked complete."""
    events = await stream(rig([*says("Hel")[:-1], StepFailed("the step broke")]))
    assert events[-1]["type"] == "response.failed"
    response = events[-1]["response"]
    assert (response["status"], response["error"]["message"]) == ("failed", "the step broke")
    assert response["output"][0]["content"][0]["text"] == "Hel"


async def test_a_failure_before_the_first_token_has_a_status() -> None:
    answer = await rig([StepFailed("the step broke")]).post(
        "/v1/responses", {"model": MODEL, "input": "hi", "stream": True}
    )
    assert (answer.status_code, answer.json()["error"]["message"]) == (500, "the step broke")


async def test_a_failure_after_a_comment_still_begins_with_the_response() -> None:
    """Red if a client saw an end of a response that was never created."""
    r = rig([Hang(), StepFailed("it broke")], sse_keepalive_s=0.001)
    sent: list[Any] = []
    body = {"model": MODEL, "input": "hi", "stream": True}
    pending = [{"type": "http.request", "body": orjson.dumps(body), "more_body": False}]

    async def send(message: Any) -> None:
        sent.append(message)
        if message.get("body", b"").startswith(b":"):
            r.generator.resume.set()

    async def receive() -> Any:
        return pending.pop() if pending else await asyncio.Event().wait()

    headers = [(b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": "/v1/responses", "headers": headers, "query_string": b""}
    await r.app(scope, receive, send)
    text = b"".join(message.get("body", b"") for message in sent).decode()
    events = events_of(httpx.Response(200, text=text))
    assert [event["type"] for event in events] == ["response.created", "response.in_progress", "response.failed"]
    assert [event["sequence_number"] for event in events] == [0, 1, 2]


async def test_log_probabilities_are_told_once_for_each_token_of_the_text() -> None:
    """Red if tokens of reasoning were told, or a character of several tokens lost one."""
    script = says("?hm.née @tide {}.ok")
    asked: dict[str, Any] = {"include": ["message.output_text.logprobs"], "top_logprobs": 2, "tools": [FUNCTION]}
    events = await stream(rig(script, make_parser=Marked), **asked)
    response = events[-1]["response"]
    messages = [item for item in response["output"] if item["type"] == "message"]
    for message, text in zip(messages, ("née ", "ok"), strict=True):
        entries = message["content"][0]["logprobs"]
        assert bytes(byte for entry in entries for byte in entry["bytes"]).decode().removeprefix(".") == text
        assert all(len(entry["top_logprobs"]) == 2 for entry in entries)
        told = [
            entry for event in events if event.get("item_id") == message["id"] for entry in event.get("logprobs", ())
        ]
        assert told == entries * 2  # in the deltas, and where the text is done
    assert without_ids(await respond(rig(script, make_parser=Marked), **asked)) == without_ids(response)
