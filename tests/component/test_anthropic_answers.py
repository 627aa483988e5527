"""Answers of /v1/messages, streamed and whole: blocks, how they stop, what they used."""

from __future__ import annotations

from typing import Any

import pytest
from anthropic.types import Message
from anthropic_client import OTHER, WEATHER, answered, ask, body_of, events, joined, marked
from scripted_gateway import ids, says

from relevo.core.request import FinishReason

WRITTEN = '?hm.Hi @w{"a": 1}@v{}'
LONG = FinishReason.LENGTH


async def test_a_whole_answer_has_a_block_for_each_kind_of_part() -> None:
    """Red if a part were left out, an input were no object, or a thought had no signature."""
    whole, _ = await answered(says(WRITTEN), tools=[WEATHER, OTHER])
    thinking, text, first, second = whole["content"]
    assert thinking["thinking"] == "hm" and thinking["signature"]
    assert text == {"type": "text", "text": "Hi ", "citations": []}  # a list: clients check it
    assert first == {"type": "tool_use", "id": "toolu_0", "name": "w", "input": {"a": 1}, "caller": {"type": "direct"}}
    assert (second["id"], second["name"], second["input"]) == ("toolu_1", "v", {})
    assert (whole["stop_reason"], whole["stop_sequence"], whole["type"]) == ("tool_use", None, "message")
    Message.model_validate(whole)


@pytest.mark.parametrize("tokens_per_step", [1, 2, 5, 100])
async def test_a_stream_has_the_same_blocks_however_many_tokens_a_step_brings(tokens_per_step: int) -> None:
    """Red if a block started before the one before it was stopped, if a call began with its input, or if the blocks,
    put together, were others than those of the whole answer."""
    script = says(WRITTEN, tokens_per_step=tokens_per_step)
    whole, told = await answered(script, tools=[WEATHER, OTHER])
    starts = [payload["content_block"] for name, payload in told if name == "content_block_start"]
    assert [start.get("input", "none") for start in starts] == ["none", "none", {}, {}]
    shown = joined(told)
    assert [block.pop("json") for block in shown] == ["", "", '{"a": 1}', "{}"]
    shown[2]["input"] = {"a": 1}
    assert shown == whole["content"]
    names = [name for name, _ in told]
    assert (names[0], names[-2:]) == ("message_start", ["message_delta", "message_stop"])
    assert told[-2][1]["delta"]["stop_reason"] == "tool_use"


async def test_a_signature_comes_last_in_its_block() -> None:
    _, told = await answered(says("?hm.x"))
    kinds = [payload["delta"] for name, payload in told if name == "content_block_delta"]
    assert [kind.get("type") for kind in kinds] == ["thinking_delta", "thinking_delta", "signature_delta", "text_delta"]
    assert all(kind["signature"] for kind in kinds if kind["type"] == "signature_delta")


async def test_later_deltas_of_a_call_bring_its_json_and_nothing_else() -> None:
    _, told = await answered(says('@w{"a": 1}'), tools=[WEATHER])
    deltas = [payload["delta"] for name, payload in told if name == "content_block_delta"]
    assert all(delta.keys() == {"type", "partial_json"} and delta["partial_json"] for delta in deltas)


@pytest.mark.parametrize(
    ("script", "fields", "reason", "sequence"),
    [
        (says("so"), {}, "end_turn", None),
        (says("so", end=LONG), {}, "max_tokens", None),
        (says("so END and on"), {"stop_sequences": ["no", "END"]}, "stop_sequence", "END"),
        (says("so EN"), {"stop_sequences": ["END"]}, "end_turn", None),
        (says("@w{}"), {"tools": [WEATHER]}, "tool_use", None),
        (says('@w{"a'), {"tools": [WEATHER]}, "tool_use", None),
        (says('@w{"a', end=LONG), {"tools": [WEATHER]}, "max_tokens", None),
        (says("@w{}", end=LONG), {"tools": [WEATHER]}, "max_tokens", None),
        (says("!no"), {}, "refusal", None),
        (says("?so", end=LONG), {}, "max_tokens", None),
    ],
)
async def test_why_an_answer_stopped(script: Any, fields: dict[str, Any], reason: str, sequence: str | None) -> None:
    """Red if a cut call were told as a finished one, or if the key `stop_sequence` were missing anywhere."""
    whole, told = await answered(script, **fields)
    assert (whole["stop_reason"], whole["stop_sequence"]) == (reason, sequence)
    ended = dict(told)["message_delta"]["delta"]
    assert (ended["stop_reason"], ended["stop_sequence"]) == (reason, sequence)
    started = dict(told)["message_start"]["message"]
    assert started["stop_reason"] is None and "stop_sequence" in started


async def test_nothing_of_a_stop_sequence_is_shown_and_all_before_it_is() -> None:
    whole, told = await answered(says("?END.so END and on"), stop_sequences=["END"])
    assert [block.get("text", block.get("thinking")) for block in whole["content"]] == ["END", "so "]
    assert [block.get("text", block.get("thinking")) for block in joined(told)] == ["END", "so "]


async def test_a_cut_call_keeps_what_was_written_of_it() -> None:
    """Red if half a command were shown as an input, if its text were lost, or if finished calls went with it."""
    whole, told = await answered(says('@w{"a": 1}@v{"b": "rm /tm', end=LONG), tools=[WEATHER, OTHER])
    finished, cut = whole["content"]
    assert finished["input"] == {"a": 1} and "partial_json" not in finished
    assert (cut["name"], cut["input"], cut["partial_json"]) == ("v", {}, '{"b": "rm /tm')
    assert [block["json"] for block in joined(told)] == ['{"a": 1}', '{"b": "rm /tm']


async def test_a_cut_call_may_be_sent_back() -> None:
    whole, _ = await answered(says('@w{"b": "rm /tm', end=LONG), tools=[WEATHER])
    r = marked(says("ok"))
    history = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": whole["content"]}]
    result = {"type": "tool_result", "tool_use_id": "toolu_0", "content": "cut", "is_error": True}
    response = await ask(r, messages=[*history, {"role": "user", "content": [result]}], tools=[WEATHER])
    assert response.status_code == 200, response.text


async def test_numbers_of_an_input_stay_as_they_were_written() -> None:
    whole = await ask(marked(says('@w{"a": 12345678901234567890123, "b": 1E2}')), tools=[WEATHER])
    assert '"input":{"a": 12345678901234567890123, "b": 1E2}' in whole.text


async def test_an_answer_ends_after_its_first_call_where_one_is_allowed() -> None:
    """Red if a second call were shown, or generated and then cut off."""
    choice = {"type": "auto", "disable_parallel_tool_use": True}
    r = marked(says("@w{}@v{}"))
    whole = (await ask(r, tools=[WEATHER, OTHER], tool_choice=choice)).json()
    assert [block["name"] for block in whole["content"]] == ["w"] and whole["stop_reason"] == "tool_use"
    assert r.generator.num_closed_early == 1
    _, told = await answered(says("@w{}@v{}"), tools=[WEATHER, OTHER], tool_choice=choice)
    assert [block["name"] for block in joined(told)] == ["w"]


async def test_an_answer_without_any_part_is_an_empty_one() -> None:
    whole, told = await answered(says(""))
    assert whole["content"] == [] and whole["stop_reason"] == "end_turn"
    assert [name for name, _ in told] == ["message_start", "message_delta", "message_stop"]


@pytest.mark.parametrize("num_cached", [0, 7])
async def test_the_three_numbers_of_the_input_add_up_at_the_start_and_at_the_end(num_cached: int) -> None:
    """Red if cached tokens were told twice, or first known at the end."""
    count = (await marked().post("/v1/messages/count_tokens", body_of())).json()["input_tokens"]
    whole = (await ask(marked(says("?hm.yes"), num_cached=num_cached))).json()["usage"]
    told = dict(events((await ask(marked(says("?hm.yes"), num_cached=num_cached), stream=True)).text))
    start, end = told["message_start"]["message"]["usage"], told["message_delta"]["usage"]
    for usage in (whole, start, end):
        assert usage["input_tokens"] == count - num_cached
        assert (usage["cache_read_input_tokens"], usage["cache_creation_input_tokens"]) == (num_cached, 0)
    assert whole == end
    assert whole["output_tokens"] == len(ids("?hm.yes")) + 1
    assert whole["output_tokens_details"] == {"thinking_tokens": 2}


@pytest.mark.parametrize(("asked", "served"), [(None, "standard"), ("auto", "standard"), ("batch", "batch")])
async def test_the_tier_that_served_is_told(asked: str | None, served: str) -> None:
    whole, told = await answered(says("x"), service_tier=asked)
    assert whole["usage"]["service_tier"] == dict(told)["message_delta"]["usage"]["service_tier"] == served


async def test_the_events_of_a_stream_are_one_answer() -> None:
    told = dict(events((await ask(marked(says("x")), {"x-request-id": "r1"}, stream=True)).text))
    message = told["message_start"]["message"]
    assert (message["id"], message["role"], message["model"], message["content"]) == ("msg_r1", "assistant", "tiny", [])
