"""What the Responses API wants held reaches the grammar, and calls as real models write them become its items."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import pytest
from answers_of_items import FUNCTION, respond, stream, without_ids
from scripted_gateway import MODEL, Rig, Step, rig, says
from test_responses_tools import PATCH, SHOWS_TOOLS

from relevo.core.request import FinishReason
from relevo.gateway.dialects.composed import ComposedParsers
from relevo.gateway.dialects.registry import REASONING_FORMATS, TOOL_FORMATS
from relevo.gateway.generation.prepare import prepare
from relevo.gateway.responses import create

UNHELD: dict[str, Any] = {"type": "object", "properties": {"x": {"type": "array", "uniqueItems": True}}}
LOOSE = FUNCTION | {"strict": False}
CALL = '<tool_call>\n{"name": "tide", "arguments": {"port": "Brest"}}\n</tool_call>'
PATCHES = '<tool_call>\n{"name": "patch", "arguments": {"input": "a\\n\\u00e9"}}\n</tool_call>'


def hermes(script: Sequence[Step]) -> Rig:
    tools, reasoning = TOOL_FORMATS["hermes"], REASONING_FORMATS["qwen3"]
    return rig(
        script,
        make_parser=ComposedParsers(reasoning, tools),
        tool_format=tools,
        reasoning_format=reasoning,
        chat_template=SHOWS_TOOLS,
        max_model_len=5000,
    )


async def grammar(**fields: Any) -> Any:
    """Of the request that the engine is given."""
    r = hermes(says("ok"))
    await respond(r, **fields)
    return r.generator.requests[-1].sampling.grammar


async def test_calls_are_held_where_a_function_is_strict_or_a_call_is_demanded() -> None:
    assert await grammar(tools=[LOOSE]) is None
    assert await grammar(tools=[FUNCTION]) is not None  # strict, as it says nothing
    assert await grammar(tools=[LOOSE], tool_choice="required") is not None
    assert await grammar(tools=[LOOSE, PATCH], tool_choice={"type": "custom", "name": "patch"}) is not None


async def test_a_schema_that_cannot_be_held_ends_no_session_unless_strict_was_asked_for() -> None:
    """Red if one tool's schema refused a whole request whose client never spoke of strict."""
    odd = FUNCTION | {"name": "odd", "parameters": UNHELD}
    assert await grammar(tools=[odd, FUNCTION]) is None
    body = {"model": MODEL, "input": "q", "tools": [odd | {"strict": True}, FUNCTION]}
    answer = await hermes(says("ok")).post("/v1/responses", body)
    told = answer.json()["error"]
    assert (answer.status_code, told["param"]) == (400, "tools")
    assert "'odd'" in told["message"]


async def test_a_format_is_held_and_one_that_cannot_be_names_its_field() -> None:
    form: dict[str, Any] = {"type": "json_schema", "name": "x", "schema": {"type": "object"}, "strict": True}
    assert await grammar(text={"format": form}) is not None
    assert await grammar(text={"format": {"type": "json_object"}}) is not None
    assert await grammar(text={"format": {"type": "text"}}) is None
    body = {"model": MODEL, "input": "q", "text": {"format": form | {"schema": UNHELD}}}
    answer = await hermes(says("ok")).post("/v1/responses", body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"].startswith("text.format")


@pytest.mark.parametrize(
    "fields", [{"tools": [FUNCTION]}, {"text": {"format": {"type": "json_object"}}}, {"input": "x" * 9000}, "chained"]
)
async def test_what_may_take_long_leaves_the_event_loop(fields: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Red if a grammar, a long text or a long conversation before were worked on where every stream waits."""
    r = rig(says("ok"), chat_template=SHOWS_TOOLS, max_model_len=50_000)
    if fields == "chained":
        fields = {"previous_response_id": (await respond(r, "x" * 9000))["id"]}
    threads: list[threading.Thread] = []

    def noted(*args: Any) -> Any:
        threads.append(threading.current_thread())
        return prepare(*args)

    monkeypatch.setattr(create, "prepare", noted)
    await r.post("/v1/responses", {"model": MODEL, "input": "q"} | fields)
    assert threads
    assert threading.main_thread() not in threads


@pytest.mark.parametrize("tokens_per_step", [1, 3, 17, 500])
async def test_reasoning_text_and_calls_of_a_real_family_are_items_however_they_are_cut(tokens_per_step: int) -> None:
    """Red if an item, an id or a place depended on how many tokens came at once, or on streaming."""
    script = says(f"<think>\nhm\n</think>\n\nLooking.\n{CALL}\n{PATCHES}", tokens_per_step=tokens_per_step)
    tools = [FUNCTION, PATCH]
    events = await stream(hermes(script), tools=tools)
    streamed = events[-1]["response"]
    whole = await respond(hermes(script), tools=tools)

    def said(response: dict[str, Any]) -> Any:
        output = without_ids(response["output"])
        return [{name: value for name, value in item.items() if name != "call_id"} for item in output]

    assert said(streamed) == said(whole)
    assert [item["type"] for item in whole["output"]] == ["reasoning", "message", "function_call", "custom_tool_call"]
    assert whole["output"][3]["input"] == "a\né"
    assert len({item["call_id"] for item in whole["output"][2:]}) == 2
    assert whole["usage"] == streamed["usage"]
    assert whole["usage"]["output_tokens_details"]["reasoning_tokens"] > 0


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_limit_in_a_second_call_keeps_the_first_and_shows_no_half_one_as_whole(streamed: bool) -> None:
    """Red if the finished call was lost, or the other looked finished."""
    script = says(f"{CALL}\n{CALL[:50]}", end=FinishReason.LENGTH)
    r = hermes(script)
    asked: dict[str, Any] = {"tools": [FUNCTION], "max_output_tokens": 200}
    response = (await stream(r, **asked))[-1]["response"] if streamed else await respond(r, **asked)
    assert (response["status"], response["incomplete_details"]["reason"]) == ("incomplete", "max_output_tokens")
    calls = [item for item in response["output"] if item["type"] == "function_call"]
    assert [call["status"] for call in calls] == ["completed", "incomplete"]
    assert calls[0]["arguments"] == '{"port": "Brest"}'


async def test_one_call_at_a_time_ends_the_answer_after_the_first() -> None:
    for response in (
        await respond(hermes(says(f"{CALL}\n{CALL}")), tools=[FUNCTION], parallel_tool_calls=False),
        (await stream(hermes(says(f"{CALL}\n{CALL}")), tools=[FUNCTION], parallel_tool_calls=False))[-1]["response"],
    ):
        assert [item["type"] for item in response["output"]] == ["function_call"]
        assert response["status"] == "completed"
