"""What a chat request says of tools: every form that clients write is read, and what cannot be done is a sentence."""

from __future__ import annotations

from typing import Any

import pytest
from scripted_gateway import MODEL, TOKENIZER, events, rig, says

from relevo.gateway.text.chat_template import ChatTemplate, ModelTemplates

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {"type": "function", "function": {"name": "weather", "description": "Now", "parameters": SCHEMA}}
TIME = {"type": "function", "function": {"name": "time"}}
BARE = ChatTemplate("{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>")
CALLED = {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "weather", "arguments": "{}"}}]}


async def prompt_of(template: Any = None, **fields: Any) -> str:
    own = {} if template is None else {"chat_template": template}
    r = rig(says("x"), max_model_len=4000, **own)
    answer = await r.chat(**fields)
    assert answer.status_code == 200, answer.text
    return TOKENIZER.decode(r.generator.requests[-1].prompt_token_ids)


@pytest.mark.parametrize(
    "fields", [{"tools": []}, {"tools": None}, {"tools": [], "tool_choice": "auto"}, {"tool_choice": "auto"}]
)
async def test_no_tools_are_no_tools_however_they_are_written(fields: dict[str, Any]) -> None:
    assert "tools:" not in await prompt_of(**fields)


@pytest.mark.parametrize(
    "choice",
    [
        None,
        "auto",
        {"type": "auto"},
        {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [WEATHER]}},
        {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "weather"}]},
    ],
)
async def test_every_tool_is_shown_whichever_may_be_called(choice: Any) -> None:
    """Red when what is allowed changes the prompt, and with it the cache of the whole conversation."""
    assert "tools:weathertime" in await prompt_of(tools=[WEATHER, TIME], tool_choice=choice)


@pytest.mark.parametrize("choice", ["none", {"type": "none"}])
async def test_none_leaves_the_tools_out(choice: Any) -> None:
    assert "tools:" not in await prompt_of(tools=[WEATHER], tool_choice=choice)


@pytest.mark.parametrize(
    ("fields", "param", "said"),
    [
        ({"tools": [WEATHER], "tool_choice": "sometimes"}, "tool_choice", "'auto', 'none', 'required'"),
        ({"tool_choice": "required"}, "tool_choice", "declares none"),
        ({"tools": [], "tool_choice": "required"}, "tool_choice", "declares none"),
        (
            {"tools": [WEATHER], "tool_choice": TIME},
            "tool_choice",
            "'time', which is not among",
        ),
        ({"tools": [WEATHER], "tool_choice": {"type": "function"}}, "tool_choice", "must name a function"),
        (
            {"tools": [WEATHER], "tool_choice": {"type": "allowed_tools", "tools": []}},
            "tool_choice",
            "'mode' and 'tools'",
        ),
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name", "names the tool"),
        ({"tools": [WEATHER, {"type": "web_search"}]}, "tools[1].type", "/v1/responses"),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": []}}]},
            "tools[0].function.parameters",
            "schema",
        ),
        ({"tools": [{"type": "function", "function": "f"}]}, "tools[0].function", "an object"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_what_cannot_be_done_is_refused_before_the_first_byte(
    fields: dict[str, Any], param: str, said: str, stream: bool
) -> None:
    r = rig(says("x"))
    answer = await r.chat(stream=stream, **fields)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param)
    assert said in error["message"] and not r.generator.requests


@pytest.mark.parametrize(
    "tool",
    [
        {"type": "function", "name": "f", "parameters": {"type": "object"}},
        {"function": {"name": "f"}},
        {"type": "function", "function": {"name": " f ", "parameters": None, "strict": None}},
        {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": None}}},
    ],
)
async def test_odd_declarations_are_shown_like_any_other(tool: dict[str, Any]) -> None:
    template = ChatTemplate(
        "{% for t in tools or [] %}{{ t.function.name }}:{{ t.function.parameters.properties.items() | list }}"
        "{% endfor %}{% for m in messages %}{{ m.content }}{% endfor %}"
    )
    assert await prompt_of(template, tools=[tool]) == "f:[]hi"


async def test_strict_is_for_the_server_and_not_for_the_prompt() -> None:
    template = ChatTemplate(
        "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}{% for m in messages %}{{ m.content }}{% endfor %}"
    )
    function = {"name": "weather", "parameters": SCHEMA}
    plain, strict = ({"type": "function", "function": function | {"strict": s}} for s in (False, True))
    assert await prompt_of(template, tools=[plain]) == await prompt_of(template, tools=[strict]) != "hi"


# ---- a template without a place for tools ----------------------------------------------------------------------------


async def test_tools_are_told_in_the_system_message_where_the_template_has_no_place() -> None:
    """Red when a model is not told of tools, or an answer does not say how it was."""
    r = rig(says("x"), max_model_len=4000, chat_template=ModelTemplates(BARE))
    answer = await r.chat(
        tools=[WEATHER], messages=[{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}]
    )
    prompt = TOKENIZER.decode(r.generator.requests[0].prompt_token_ids)
    assert answer.headers["x-relevo-tools"] == "emulated"
    assert prompt.startswith("<system>Be brief.\n\nYou may call tools.") and prompt.endswith(
        "</tool_response>.<user>hi<assistant>"
    )
    assert '<tools>\n{"type": "function", "function": {"name": "weather", "description": "Now", "parameters"' in prompt


async def test_earlier_calls_and_results_are_told_as_text() -> None:
    results = [
        {"role": "tool", "tool_call_id": "c", "content": text} for text in ("sun", [{"type": "text", "text": "rain"}])
    ]
    messages = [{"role": "user", "content": "hi"}, CALLED, *results]
    prompt = await prompt_of(ModelTemplates(BARE), messages=messages)
    call = '<tool_call>\n{"name": "weather", "arguments": {}}\n</tool_call>'
    told = "\n".join(f"<tool_response>\n{text}\n</tool_response>" for text in ("sun", "rain"))
    assert prompt == f"<user>hi<assistant>{call}<user>{told}<assistant>"


async def test_without_emulation_a_request_with_tools_is_refused() -> None:
    r = rig(says("x"), chat_template=ModelTemplates(BARE, may_emulate=False))
    answer = await r.chat(tools=[WEATHER])
    assert answer.status_code == 400 and "--tool-emulation off" in answer.json()["error"]["message"]
    assert (await r.chat(tools=[WEATHER], tool_choice="none")).status_code == 200


async def test_a_template_for_tools_is_not_emulated() -> None:
    r = rig(says("x"))
    answer = await r.chat(tools=[WEATHER])
    assert "x-relevo-tools" not in answer.headers


# ---- reasoning -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "shown"),
    [
        ({}, "-,-,-"),
        ({"reasoning_effort": "high"}, "high,-,-"),
        ({"reasoning_effort": "none"}, "none,False,False"),
        ({"reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": True}}, "none,True,False"),
        ({"chat_template_kwargs": {"reasoning_effort": "low"}, "reasoning_effort": "high"}, "low,-,-"),
    ],
)
async def test_effort_reaches_the_template_and_none_switches_thinking_off(fields: dict[str, Any], shown: str) -> None:
    template = ChatTemplate(
        "{% for m in messages %}{{ m.content }}{% endfor %}={{ reasoning_effort | default('-') }},"
        "{{ enable_thinking | default('-') }},{{ thinking | default('-') }}"
    )
    assert await prompt_of(template, **fields) == f"hi={shown}"


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": "hi"}], "reasoning_effort": "ultra"},
            "reasoning_effort",
        ),
        ("/v1/responses", {"input": "hi", "reasoning": {"effort": "ultra"}}, "reasoning.effort"),
        (
            "/v1/messages",
            {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1, "output_config": {"effort": "ultra"}},
            "output_config.effort",
        ),
    ],
)
async def test_an_effort_of_no_api_is_refused(path: str, fields: dict[str, Any], param: str) -> None:
    """Red if it is taken: no template knows it, and the client would take the answer for a deep one."""
    answer = await rig(says("x")).post(path, {"model": MODEL, **fields})
    assert answer.status_code == 400 and f"'{param}' must be one of none, minimal" in answer.text


async def test_reasoning_is_left_out_where_the_client_does_not_want_it() -> None:
    from test_answer_parts import Marked

    for stream in (False, True):
        answer = await rig(says("?hm.yes"), make_parser=Marked).chat(include_reasoning=False, stream=stream)
        assert "hm" not in answer.text
        shown = [p["choices"][0].get("delta", {}).get("content", "") for p in events(answer) if isinstance(p, dict)]
        assert "".join(shown) == "yes" if stream else answer.json()["choices"][0]["message"]["content"] == "yes"


@pytest.mark.parametrize("content", [["done"], [7], {"ok": True}, [{"type": "text", "text": "done"}], None])
async def test_a_result_that_is_to_be_gone_on_with_may_be_written_in_any_way(content: Any) -> None:
    """Red when what a tool returned is taken for parts of text: the request then fails in the server."""
    messages = [{"role": "user", "content": "hi"}, {"role": "tool", "content": content}]
    answer = await rig(says("x")).chat(messages=messages, continue_final_message=True, add_generation_prompt=False)
    assert answer.status_code in (200, 400), answer.text
