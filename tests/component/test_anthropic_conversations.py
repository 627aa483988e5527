"""What becomes of Anthropic's messages, tools and settings before the model reads them; whatever history a client has
is taken, and what is skipped of it is named in the log."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from anthropic_client import OTHER, WEATHER, ask, body_of, marked, prompt_of
from scripted_gateway import MODEL, says

from relevo.gateway.anthropic.blocks import DOCUMENT_SENTENCE, IMAGE_SENTENCE
from relevo.gateway.text.chat_template import ChatTemplate, ModelTemplates

IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}
MARKED = {"cache_control": {"type": "ephemeral"}}


def text(words: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": words, **more}


def call(call_id: str, name: str = "w", **more: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": name, "input": {"a": 1}, **more}


def result(call_id: str, content: Any = "sun", **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call_id, "content": content, **more}


async def read(*messages: tuple[str, Any], **fields: Any) -> str:
    """The prompt, up to the answer."""
    r = marked(says("ok"))
    response = await ask(r, messages=[{"role": role, "content": content} for role, content in messages], **fields)
    assert response.status_code == 200, response.text
    return prompt_of(r).removesuffix("<assistant>")


async def refused(fields: dict[str, Any], **context: Any) -> str:
    response = await ask(marked(says("ok"), **context), **fields)
    body = response.json()
    assert (response.status_code, body["error"]["type"]) == (400, "invalid_request_error"), response.text
    return str(body["error"]["message"])


@pytest.mark.parametrize("system", ["be kind", [text("be"), text("", **MARKED), text("kind", **MARKED)]])
async def test_a_system_text_comes_first(system: Any) -> None:
    prompt = await read(("user", "hi"), system=system)
    assert prompt.replace("be\nkind", "be kind") == "<system>be kind\n<user>hi\n"


async def test_a_line_for_the_bill_is_not_in_the_prompt() -> None:
    """Red if two requests that differ in it alone had different prompts: no prefix would ever be found again."""
    nonce = "x-anthropic-billing-header: cc_version=1; cch=%s;"
    prompts = [await read(("user", "hi"), system=[text(nonce % n), text("be kind")]) for n in ("a", "b")]
    assert prompts == ["<system>be kind\n<user>hi\n"] * 2


async def test_a_system_message_in_the_middle_stays_where_it_is() -> None:
    prompt = await read(("user", [text("hi")]), ("system", "new rules"), ("user", [text("", **MARKED), text("go")]))
    assert prompt == "<user>hi\n<system>new rules\n<user>go\n"


async def test_calls_and_results_are_messages_of_their_own() -> None:
    """Red if a result lost its name or its place, or if what a client says with it were lost."""
    prompt = await read(
        ("user", "hi"),
        ("assistant", [text("Looking."), call("t1"), call("t2", "v")]),
        ("user", [text("quick"), result("t2", "rain"), result("t1", [text("sun"), text("22")])]),
        tools=[WEATHER, OTHER],
    )
    assert prompt.endswith(
        '<assistant>Looking.[t1 w {"a": 1}][t2 v {"a": 1}]\n<tool v t2>rain\n<tool w t1>sun\n22\n<user>quick\n'
    )


@pytest.mark.parametrize(
    ("content", "shown"),
    [
        (None, ""),
        ([], ""),
        ("", ""),
        ([IMAGE, text("see")], IMAGE_SENTENCE + "\nsee"),
        ([{"type": "search_result", "title": "T", "source": "u", "content": [text("found")]}], "T\nu\nfound"),
        ([{"type": "document", "title": "T", "source": {"type": "text", "data": "body"}}], "T\nbody"),
        (
            [{"type": "document", "source": {"type": "content", "content": [text("in"), IMAGE]}}],
            f"in\n{IMAGE_SENTENCE}",
        ),
        ([{"type": "document", "source": {"type": "base64", "data": "AA=="}}], DOCUMENT_SENTENCE),
        ([{"type": "tool_reference", "tool_name": "x"}, text("y")], "y"),
    ],
)
async def test_what_a_tool_gave_is_text(content: Any, shown: str) -> None:
    prompt = await read(("user", "hi"), ("assistant", [call("t1")]), ("user", [result("t1", content)]), tools=[WEATHER])
    assert prompt.endswith(f"<tool w t1>{shown}\n")


@pytest.mark.parametrize(
    ("content", "shown"),
    [("no file", "Error: no file"), ("Error: no file", "Error: no file"), ("<tool_use_error>x", "<tool_use_error>x")],
)
async def test_a_failed_tool_is_told_as_one(content: str, shown: str) -> None:
    failed = result("t1", content, is_error=True)
    prompt = await read(("user", "hi"), ("assistant", [call("t1")]), ("user", [failed]), tools=[WEATHER])
    assert prompt.endswith(f"<tool w t1>{shown}\n")


@pytest.mark.parametrize(
    ("turns", "shown"),
    [
        ([("user", [result("t1")])], "<tool t1>sun\n"),
        ([("user", [result("t1")]), ("assistant", [call("t1")])], '<tool t1>sun\n<assistant>[t1 w {"a": 1}]\n'),
        ([("assistant", [call("t1")]), ("user", "go on")], '<assistant>[t1 w {"a": 1}]\n<user>go on\n'),
        (
            [("assistant", [call("t"), call("t", "v")]), ("user", [result("t", "1"), result("t", "2")])],
            '<assistant>[t w {"a": 1}][t v {"a": 1}]\n<tool w t>1\n<tool v t>2\n',
        ),
        (
            [("assistant", [call("t")]), ("user", "no"), ("assistant", [call("t", "v")]), ("user", [result("t")])],
            '<assistant>[t w {"a": 1}]\n<user>no\n<assistant>[t v {"a": 1}]\n<tool v t>sun\n',
        ),
    ],
)
async def test_a_history_with_calls_and_results_that_do_not_match_is_read(
    turns: list[tuple[str, Any]], shown: str
) -> None:
    """Red if a result without its call, before it, or with an id that another call has, ended the session."""
    prompt = await read(("user", "hi"), *turns, ("user", "?"), tools=[WEATHER, OTHER])
    assert prompt.partition("<user>hi\n")[2].removesuffix("<user>?\n").replace("\n?\n", "\n") == shown


@pytest.mark.parametrize("signature", [{}, {"signature": ""}, {"signature": "EqQB+of/another=="}])
async def test_thoughts_are_taken_whatever_their_signature(signature: dict[str, str]) -> None:
    thought = {"type": "thinking", "thinking": "hm", **signature}
    hidden = {"type": "redacted_thinking", "data": "EmwKAhgB"}
    prompt = await read(("user", "hi"), ("assistant", [thought, hidden, text("so")]), ("user", "and"))
    assert prompt == "<user>hi\n<assistant>(hm)so\n<user>and\n"


async def test_a_block_that_is_not_known_is_skipped_and_named_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """Red if a new kind of block ended a session, or vanished without a word."""
    added = {"type": "tool_addition", "tool": {"name": "x", "input_schema": {}}}
    odd = {"type": "what\nis this", "x": 1}
    with caplog.at_level(logging.WARNING):
        prompt = await read(("user", [added, text("hi"), odd]), ("assistant", [added]), ("user", "on"))
    assert prompt == "<user>hi\non\n"
    assert "content:tool_addition" in caplog.text and "content:?" in caplog.text


async def test_turns_of_one_role_are_one_turn() -> None:
    turns = [("user", "a"), ("user", [text("b")]), ("assistant", "c"), ("assistant", [call("t")]), ("user", "d")]
    assert await read(*turns, tools=[WEATHER]) == (
        '[tool w {"type": "object", "properties": {}}]\n<user>a\nb\n<assistant>c[t w {"a": 1}]\n<user>d\n'
    )


async def test_an_answer_that_was_begun_is_gone_on_with() -> None:
    assert await read(("user", "hi"), ("assistant", "The best is (")) == "<user>hi\n<assistant>The best is ("


async def test_an_image_of_a_user_is_refused_by_its_place() -> None:
    message = await refused({"messages": [{"role": "user", "content": [text("see"), IMAGE]}]})
    assert "messages[0].content[1]" in message and "takes text only" in message


@pytest.mark.parametrize(
    ("messages", "place"),
    [
        ([{"role": "tool", "content": "x"}], "messages[0].role"),
        ([{"content": "x"}], "messages[0].role"),
        ([{"role": "user", "content": 1}], "messages[0].content"),
        ([{"role": "user", "content": ["x"]}], "messages[0].content[0]"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text"),
        (
            [{"role": "assistant", "content": [{"type": "tool_use", "id": "t", "input": {}}]}],
            "messages[0].content[0].name",
        ),
        ([{"role": "assistant", "content": [{"type": "thinking", "thinking": 1}]}], "messages[0].content[0].thinking"),
        ([{"role": "user", "content": [result("t", 5)]}], "messages[0].content[0].content"),
    ],
)
async def test_what_cannot_be_read_is_refused_by_its_place(messages: list[Any], place: str) -> None:
    assert f"'{place}'" in await refused({"messages": messages})


async def test_blocks_within_blocks_have_an_end() -> None:
    """Red if a body could choose how deep the gateway calls itself."""
    block: Any = text("x")
    for _ in range(90):
        block = {"type": "document", "source": {"type": "content", "content": [block]}}
    assert await read(("user", [block, text("hi")])) == "<user>hi\n"


@pytest.mark.parametrize("place", ["input", "input_schema"])
async def test_what_is_nested_too_deeply_is_refused(place: str) -> None:
    """Red if something walked it as deep as it is: the interpreter's stack ends before the parser's limit."""
    deep: Any = 1
    for _ in range(700):
        deep = {"k": deep}
    turn = {"role": "assistant", "content": [call("t1", input=deep if place == "input" else {})]}
    tool = {"name": "w", "input_schema": deep if place == "input_schema" else {}}
    assert "levels deep" in await refused({"messages": [turn], "tools": [tool]})


async def test_a_conversation_of_very_many_turns_of_one_role_is_read() -> None:
    prompt = await read(*[("user", "x")] * 2000)
    assert prompt == "<user>" + "\n".join("x" * 2000) + "\n"


async def test_tools_are_shown_and_those_without_a_schema_named_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    typed = [{"type": "bash_20250124", "name": "bash"}, {"type": "web_search_20250305", "name": "web_search"}]
    with caplog.at_level(logging.WARNING):
        prompt = await read(("user", "hi"), tools=[typed[0], {**WEATHER, "type": "custom", **MARKED}, typed[1]])
    assert prompt == '[tool w {"type": "object", "properties": {}}]\n<user>hi\n'
    assert "tools:bash_20250124" in caplog.text and "tools:web_search_20250305" in caplog.text


async def test_no_tool_is_shown_where_none_may_be_called() -> None:
    assert await read(("user", "hi"), tools=[WEATHER], tool_choice={"type": "none"}) == "<user>hi\n"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"tools": [WEATHER], "tool_choice": {"type": "tool", "name": "nosuch"}}, "'nosuch'"),
        ({"tools": [WEATHER], "tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"tools": [WEATHER], "tool_choice": {"type": ["any"]}}, "tool_choice.type"),
        ({"tools": [], "tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}], "tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tools": [{"name": "w"}]}, "tools[0].input_schema"),
        ({"tools": [{"input_schema": {}}]}, "tools[0].name"),
        ({"thinking": {"type": "much"}}, "thinking.type"),
        ({"output_config": {"effort": 3}}, "output_config.effort"),
        ({"output_config": {"format": {"type": "xml"}}}, "output_config.format"),
        ({"output_format": {"type": "json_schema"}}, "output_format"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": None}, "max_tokens"),
        ({"temperature": 2.5}, "temperature"),
        ({"stop_sequences": [""]}, "stop_sequences"),
        ({"messages": []}, "messages"),
    ],
)
async def test_a_wish_that_cannot_be_met_is_refused_by_its_name(fields: dict[str, Any], said: str) -> None:
    assert said in await refused(fields)


async def test_tools_are_told_where_a_template_has_no_place_for_them() -> None:
    template = ModelTemplates(ChatTemplate("{% for m in messages %}{{ m.role }}:{{ m.content }}{% endfor %}"))
    r = marked(says("ok"), chat_template=template)
    response = await ask(r, tools=[WEATHER])
    assert response.headers["x-relevo-tools"] == "emulated" and '"w"' in prompt_of(r)


@pytest.mark.parametrize(
    ("fields", "shown"),
    [
        ({}, ""),
        ({"thinking": {"type": "enabled", "budget_tokens": 2048}}, "thinking:True\n"),
        ({"thinking": {"type": "adaptive"}}, "thinking:True\n"),
        ({"thinking": {"type": "disabled"}}, "thinking:False\n"),
        ({"output_config": {"effort": "high"}}, "effort:high\n"),
    ],
)
async def test_how_much_to_think_is_told_to_the_template(fields: dict[str, Any], shown: str) -> None:
    assert await read(("user", "hi"), **fields) == "<user>hi\n" + shown


async def test_how_to_sample_reaches_the_engine() -> None:
    r = marked(says("ok"))
    await ask(r, temperature=0.5, top_p=0.25, top_k=3, max_tokens=7, seed=1)
    sampling = r.generator.requests[0].sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.max_tokens) == (0.5, 0.25, 3, 7)


async def test_what_has_no_effect_is_taken_and_named_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    fields = {"context_management": {"edits": []}, "mcp_servers": [], "container": "c", "service_tier": "auto"}
    with caplog.at_level(logging.WARNING):
        response = await ask(marked(says("ok")), **fields, unheard_of={"x": 1})
    assert response.status_code == 200
    assert all(name in caplog.text for name in ("context_management", "mcp_servers", "container"))


async def test_names_that_clients_choose_do_not_fill_the_memory() -> None:
    """Red if every new kind of block were remembered for ever."""
    r = marked(says("ok"))
    for start in range(0, 600, 100):
        blocks = [{"type": f"kind_{number}"} for number in range(start, start + 100)]
        assert (await ask(r, messages=[{"role": "user", "content": [*blocks, text("hi")]}])).status_code == 200
    assert len(r.app._field_warnings._seen) == 256  # type: ignore[attr-defined]


async def test_requests_of_one_session_are_known_by_its_user_id() -> None:
    """Red if the metadata did not reach the router: turns of one session would lose their cached prefix."""
    r = marked(says("ok"))
    for words, session in (("a", "s1"), ("b", "s1"), ("b", "s2")):
        metadata = {"user_id": f'{{"device_id": "d", "session_id": "{session}"}}'}
        await ask(r, messages=[{"role": "user", "content": words}], metadata=metadata)
    first, second, third = [request.session for request in r.generator.requests]
    assert first == second != third


async def test_a_count_is_of_the_tokens_that_the_same_request_has() -> None:
    """Red if tools, system, thoughts or settings were counted otherwise than they are read."""
    fields: dict[str, Any] = {
        "system": [text("x-anthropic-billing-header: a;"), text("be kind", **MARKED)],
        "tools": [WEATHER, {"type": "bash_20250124", "name": "bash"}],
        "thinking": {"type": "adaptive"},
        "output_config": {"effort": "high"},
        "messages": [
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm"}, call("t1")]},
            {"role": "user", "content": [result("t1"), text("so?")]},
        ],
    }
    r = marked(says("ok"), num_cached=11)
    usage = (await ask(r, **fields)).json()["usage"]
    counted = await r.post("/v1/messages/count_tokens", {"model": MODEL, **fields})
    assert counted.json() == {"input_tokens": len(r.generator.requests[0].prompt_token_ids)}
    parts = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    assert counted.json()["input_tokens"] == sum(usage[name] for name in parts)


async def test_a_prompt_that_is_too_long_can_be_counted_until_it_costs_too_much() -> None:
    r = marked(max_model_len=50, max_tokenize_bytes=400)
    messages = [{"role": "user", "content": "x" * 100}]
    counted = await r.post("/v1/messages/count_tokens", body_of(messages=messages))
    assert counted.json() == {"input_tokens": len("<user>\n<assistant>") + 100}
    messages = [{"role": "user", "content": "x" * 200_000}]
    refusal = (await r.post("/v1/messages/count_tokens", body_of(messages=messages))).json()
    assert refusal["error"]["message"].startswith("prompt is too long: ")
