"""Which requests are held to what: forced and strict calls, formats beside tools, thoughts as the prompt left them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from held_walks import next_tokens, takes
from scripted_gateway import Rig, rig, says

from relevo.gateway.dialects.composed import ComposedParsers
from relevo.gateway.dialects.registry import REASONING_FORMATS, TOOL_FORMATS
from relevo.gateway.text.chat_template import ChatTemplate, ModelTemplates

SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}
STRICT = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA, "strict": True}}
ODD = {"type": "function", "function": {"name": "odd", "parameters": {"properties": {"a": {"format": "path"}}}}}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city":"Brest"}}\n</tool_call>'
FORMAT = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"const": 1}, "strict": True}}
THINKS = ChatTemplate(
    "{% for m in messages %}{{ m.content }}{% endfor %}{% if tools %}{{ tools }}{% endif %}"
    "{% if enable_thinking is not defined or enable_thinking %}<think>\n{% else %}<think>\n\n</think>\n\n{% endif %}"
)


def hermes(text: str = CALL, **own: Any) -> Rig:
    tools, thoughts = TOOL_FORMATS["hermes"], own.pop("thoughts", None)
    parsers = ComposedParsers(thoughts, tools)
    return rig(says(text), max_model_len=4000, tool_format=tools, reasoning_format=thoughts, make_parser=parsers, **own)


async def grammar(r: Rig, **fields: Any) -> str:
    answer = await r.chat(**fields)
    assert answer.status_code == 200, answer.text
    found = r.generator.requests[-1].sampling.grammar
    assert found is not None
    return found


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
async def test_a_forced_call_is_held_from_its_first_token(choice: Any) -> None:
    held = await grammar(hermes(), tools=[WEATHER, ODD], tool_choice=choice)
    assert takes(held, CALL) and next_tokens(held, "") == {ord("<")}
    assert not takes(held, CALL.replace("Brest", "Brest\n")) and not takes(held, "text")
    assert takes(held, CALL.replace("weather", "odd").replace("city", "a")) is (choice == "required")


async def test_forced_calls_are_as_many_as_the_request_allows() -> None:
    assert takes(await grammar(hermes(), tools=[WEATHER], tool_choice="required"), f"{CALL}\n{CALL}")
    one = await grammar(hermes(), tools=[WEATHER], tool_choice="required", parallel_tool_calls=False)
    assert takes(one, CALL) and not takes(one, f"{CALL}\n{CALL}")


async def test_a_named_function_is_called_once() -> None:
    """As OpenAI's guide says. Red if it may be repeated, which a small model does to its limit."""
    named = {"type": "function", "function": {"name": "weather"}}
    held = await grammar(hermes(), tools=[WEATHER], tool_choice=named, parallel_tool_calls=True)
    assert takes(held, CALL) and not takes(held, f"{CALL}\n{CALL}")


async def test_a_model_that_is_told_of_tools_in_words_is_forced_to_one_call() -> None:
    """It never learned when it has called enough. Red if it may repeat the call until a limit ends it."""
    bare = ChatTemplate("{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>")
    held = await grammar(hermes(chat_template=ModelTemplates(bare)), tools=[WEATHER], tool_choice="required")
    assert takes(held, CALL) and not takes(held, f"{CALL}\n{CALL}")


async def test_auto_holds_strict_tools_and_no_others() -> None:
    r = hermes()
    assert (await r.chat(tools=[WEATHER])).status_code == 200
    assert r.generator.requests[-1].sampling.grammar is None
    held = await grammar(r, tools=[STRICT])
    assert takes(held, f"Well. {CALL}") and takes(held, "no call") and not takes(held, CALL.replace("city", "town"))


async def test_tools_that_are_told_in_words_are_held() -> None:
    """A model that was not made for calls writes them wrongly."""
    bare = ChatTemplate("{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>")
    held = await grammar(hermes(chat_template=ModelTemplates(bare)), tools=[WEATHER])
    assert takes(held, CALL) and takes(held, "text") and not takes(held, CALL.replace("weather", "wether"))


async def test_an_odd_tool_is_named_in_a_header_and_refuses_nothing() -> None:
    answer = await hermes().chat(tools=[WEATHER, ODD], tool_choice="required")
    assert answer.status_code == 200
    assert (
        "tool 'odd'" in answer.headers["x-relevo-notes"]
        and "'format' at /properties/a" in answer.headers["x-relevo-notes"]
    )


async def test_a_strict_odd_tool_is_refused_with_its_place() -> None:
    odd = {"type": "function", "function": {**ODD["function"], "strict": True}}  # type: ignore[dict-item]
    error = (await hermes().chat(tools=[odd])).json()["error"]
    assert error["param"] == "tools" and "'odd'" in error["message"] and "/properties/a" in error["message"]


async def test_a_format_beside_tools_is_content_or_a_call() -> None:
    held = await grammar(hermes(), tools=[WEATHER], response_format=FORMAT)
    assert takes(held, "1") and takes(held, CALL) and not takes(held, "text")
    forced = await grammar(hermes(), tools=[WEATHER], response_format=FORMAT, tool_choice="required")
    assert takes(forced, CALL) and not takes(forced, "1")
    none = await grammar(hermes("1"), tools=[WEATHER], response_format=FORMAT, tool_choice="none")
    assert takes(none, "1") and not takes(none, CALL)


@pytest.mark.parametrize(("kwargs", "is_open"), [({}, True), ({"enable_thinking": False}, False)])
async def test_what_is_held_begins_behind_thoughts_that_the_prompt_opened(kwargs: Any, is_open: bool) -> None:
    r = hermes("hm</think>1", thoughts=REASONING_FORMATS["qwen3"], chat_template=THINKS)
    held = await grammar(r, response_format=FORMAT, chat_template_kwargs=kwargs)
    assert takes(held, "hm</think>\n\n1") is is_open
    assert takes(held, "1") is not is_open


async def test_a_family_without_a_form_to_hold_is_named() -> None:
    tools = replace(TOOL_FORMATS["deepseek_v32"], shape=None)  # type: ignore[type-var]
    r = rig(says("x"), max_model_len=4000, tool_format=tools)
    error = (await r.chat(tools=[WEATHER], tool_choice="required")).json()["error"]
    assert error["param"] == "tool_choice" and "'deepseek_v32'" in error["message"]
    assert (await r.chat(tools=[STRICT])).status_code == 200, "a call that may come is not held, and may come"


async def test_without_a_parser_a_call_cannot_be_forced() -> None:
    error = (await rig(says("x"), max_model_len=4000).chat(tools=[WEATHER], tool_choice="required")).json()["error"]
    assert error["param"] == "tool_choice" and "--tool-call-parser" in error["message"]


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "x"}}])
async def test_what_cannot_be_called_is_refused_before_the_first_byte(choice: Any) -> None:
    r = hermes()
    for fields in ({"tools": []}, {"tools": [WEATHER]} if isinstance(choice, dict) else {}):
        answer = await r.chat(tool_choice=choice, stream=True, **fields)
        assert answer.status_code == 400 and answer.json()["error"]["param"] == "tool_choice"
    assert not r.generator.requests
