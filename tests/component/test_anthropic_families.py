"""What models write in their own markup, as blocks: streamed and whole alike, however many tokens a step brings."""

from __future__ import annotations

from typing import Any

import pytest
from anthropic_client import TEMPLATE, ask, events, joined, marked
from scripted_gateway import Rig, says

from relevo.core.request import FinishReason
from relevo.gateway.dialects.composed import ComposedParsers
from relevo.gateway.dialects.registry import REASONING_FORMATS, TOOL_FORMATS
from relevo.gateway.text.chat_template import ChatTemplate

TIDE: dict[str, Any] = {
    "name": "tide",
    "input_schema": {"type": "object", "properties": {"port": {"type": "string"}}, "additionalProperties": True},
}
PING: dict[str, Any] = {"name": "ping", "input_schema": {"type": "object", "properties": {}}}
LONG = FinishReason.LENGTH


def call(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def model(script: Any, opens_thought: bool = False) -> Rig:
    """Calls as Hermes writes them, reasoning as Qwen does; its template may open the block."""
    template = TEMPLATE.replace("<assistant>", "<assistant><think>\n") if opens_thought else TEMPLATE
    tools, reasoning = TOOL_FORMATS["hermes"], REASONING_FORMATS["qwen3"]
    return marked(
        script,
        chat_template=ChatTemplate(template),
        make_parser=ComposedParsers(reasoning, tools),
        tool_format=tools,
        reasoning_format=reasoning,
    )


async def shown(
    text: str, *, end: FinishReason = FinishReason.STOP, tokens: int = 1, opens_thought: bool = False, **fields: Any
) -> tuple[list[tuple[str, str]], str, dict[str, Any]]:
    """Blocks as their kind and text, why it stopped, the usage; after a look that stream and whole agree."""
    script, asked = says(text, end=end, tokens_per_step=tokens), {"tools": [TIDE, PING], **fields}
    whole = (await ask(model(script, opens_thought), **asked)).json()
    told = events((await ask(model(script, opens_thought), stream=True, **asked)).text)
    streamed, ended = [_told(block) for block in joined(told)], dict(told)["message_delta"]
    assert streamed == [_told(block) for block in whole["content"]]
    assert (whole["stop_reason"], whole["usage"]) == (ended["delta"]["stop_reason"], ended["usage"])
    return streamed, whole["stop_reason"], whole["usage"]


def _told(block: dict[str, Any]) -> tuple[str, str]:
    if block["type"] != "tool_use":
        return block["type"], block.get("thinking") or block.get("text", "")
    text = block.get("json") or block.get("partial_json")
    if text is None:
        text = str(block["input"]).replace("'", '"')
    return f"{block['name']}", text


@pytest.mark.parametrize("tokens", [1, 3, 500])
async def test_thought_text_and_two_calls(tokens: int) -> None:
    """Red if a step of many tokens lost a call, or if the empty arguments of one emptied the next one's."""
    text = "<think>\nhm\n</think>\n\nLooking." + call("ping", "{}") + call("tide", '{"port": "Brest"}')
    blocks, reason, usage = await shown(text, tokens=tokens)
    assert blocks == [("thinking", "hm"), ("text", "Looking."), ("ping", "{}"), ("tide", '{"port": "Brest"}')]
    assert reason == "tool_use" and 0 < usage["output_tokens_details"]["thinking_tokens"] < usage["output_tokens"]


async def test_a_call_that_a_limit_cut_is_told_as_cut() -> None:
    text = call("ping", "{}") + call("tide", '{"port": "Bre').removesuffix("}\n</tool_call>")
    blocks, reason, _ = await shown(text, end=LONG)
    assert blocks == [("ping", "{}"), ("tide", '{"port": "Bre')] and reason == "max_tokens"


async def test_a_call_that_was_not_named_before_the_limit_is_text() -> None:
    blocks, reason, _ = await shown('Looking.<tool_call>\n{"na', end=LONG)
    assert "".join(text for kind, text in blocks) == 'Looking.<tool_call>\n{"na' and reason == "max_tokens"


async def test_one_call_where_one_is_allowed() -> None:
    choice = {"type": "auto", "disable_parallel_tool_use": True}
    blocks, reason, usage = await shown(call("ping", "{}") * 2, tool_choice=choice)
    assert (blocks, reason) == ([("ping", "{}")], "tool_use")
    assert usage["output_tokens"] < 1.5 * len(call("ping", "{}"))


@pytest.mark.parametrize(("end", "reason"), [(LONG, "max_tokens"), (FinishReason.STOP, "end_turn")])
async def test_a_thought_that_the_template_opened_and_nothing_ended(end: FinishReason, reason: str) -> None:
    """Red if thoughts were shown as text, or counted as none because no mark began them."""
    blocks, told, usage = await shown("so it is", end=end, opens_thought=True)
    assert (blocks, told) == ([("thinking", "so it is")], reason)
    assert usage["output_tokens_details"]["thinking_tokens"] >= len("so it is")


async def test_calls_are_text_where_none_may_be_made() -> None:
    blocks, reason, _ = await shown(call("ping", "{}"), tool_choice={"type": "none"})
    assert (blocks, reason) == ([("text", call("ping", "{}"))], "end_turn")


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "ping"}])
async def test_a_forced_call_is_held_while_it_is_generated(choice: dict[str, Any]) -> None:
    """Red if `any` or a named tool were read as `auto`."""
    r = model(says(call("ping", "{}")))
    body = (await ask(r, tools=[TIDE, PING], tool_choice=choice)).json()
    assert [block["type"] for block in body["content"]] == ["tool_use"] and body["stop_reason"] == "tool_use"
    assert r.generator.requests[0].sampling.grammar is not None
    assert (await ask(r, tools=[TIDE, PING])).status_code == 200
    assert r.generator.requests[1].sampling.grammar is None


async def test_an_output_format_is_held_while_it_is_generated() -> None:
    r = model(says('{"x": 1}'))
    form = {"type": "json_schema", "schema": {"type": "object", "properties": {"x": {"type": "integer"}}}}
    for fields in ({"output_config": {"format": form}}, {"output_format": form}):
        body = (await ask(r, **fields)).json()
        assert body["content"][0]["text"] == '{"x": 1}'
        assert r.generator.requests[-1].sampling.grammar is not None
