"""Conversations as agents really write them reach the template: nothing that an earlier turn left there is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from relevo.core.errors import InvalidRequest
from relevo.gateway.text.chat_template import ChatTemplate

TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}"
    "{% for c in m.tool_calls or [] %}[{{ c.id }} {{ c.function.name }} "
    "{{ c.function.arguments | tojson }}]{% endfor %}"
    "{% if m.role == 'tool' %}({{ m.tool_call_id }} {{ m.name }}){% endif %}{% endfor %}"
)
NINE = (
    TEMPLATE + "{% for m in messages %}{% for c in m.tool_calls or [] %}{% if c.id | length != 9 %}"
    "{{ raise_exception('ids have nine characters') }}{% endif %}{% endfor %}{% endfor %}"
)
COUNTED = TEMPLATE + "{# <|tool_call_begin|> #}"
TEXT_ARGUMENTS = TEMPLATE.replace("c.function.arguments | tojson", "c.function.arguments + ''")
USER = {"role": "user", "content": "go"}


def call(arguments: Any, call_id: str | None = "c1", name: str = "f") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def calls(*made: dict[str, Any], **members: Any) -> dict[str, Any]:
    return {"role": "assistant", "tool_calls": list(made), **members}


def result(content: Any = "done", call_id: str | None = "c1", **members: Any) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": content, **members}


def render(*messages: dict[str, Any], template: str = TEMPLATE) -> str:
    return ChatTemplate(template).render([USER, *messages], add_generation_prompt=False).removeprefix("<user>go")


@pytest.mark.parametrize("members", [{}, {"content": None}, {"content": ""}, {"content": []}])
def test_an_answer_that_only_calls_has_no_content_however_it_is_written(members: dict[str, Any]) -> None:
    """Red when a client's null becomes a word of the prompt, or the message is lost."""
    assert render(calls(call("{}"), **members), result()) == "<assistant>[c1 f {}]<tool>done(c1 f)"


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        ('{"a": 1}', '{"a": 1}'),
        ({"a": 1}, '{"a": 1}'),
        ("", "{}"),
        (None, "{}"),
        ("null", "{}"),
        ('{"p": "', json.dumps({"arguments": '{"p": "'})),
        ("[1]", '{"arguments": [1]}'),
        ("7", '{"arguments": 7}'),
    ],
)
def test_arguments_are_an_object_for_the_template_whatever_was_kept_of_them(arguments: Any, shown: str) -> None:
    """Red when a call that was cut ends the session: every later turn sends it again."""
    assert render(calls(call(arguments)), result()) == f"<assistant>[c1 f {shown}]<tool>done(c1 f)"


def test_a_template_that_writes_arguments_as_text_is_given_text() -> None:
    assert render(calls(call({"a": "ü"})), result(), template=TEXT_ARGUMENTS).startswith('<assistant>[c1 f {"a": "ü"}]')


@pytest.mark.parametrize(
    ("messages", "shown"),
    [
        ([result("early"), calls(call("{}"))], "<tool>early(c1 )<assistant>[c1 f {}]"),
        ([calls(call("{}")), USER], "<assistant>[c1 f {}]<user>go"),
        (
            [calls(call("{}", "x"), call("{}", "x", "g")), result("1", "x"), result("2", "x")],
            "<assistant>[x f {}][x g {}]<tool>1(x f)<tool>2(x g)",
        ),
        (
            [calls(call("{}", "a"), call("{}", "b", "g")), result("2", "b"), result("1", "a")],
            "<assistant>[a f {}][b g {}]<tool>2(b g)<tool>1(a f)",
        ),
        (
            [calls(call("{}", None), call("{}", "", "g")), result("1", None), result("2", "")],
            "<assistant>[call_0 f {}][call_1 g {}]<tool>1(call_0 f)<tool>2(call_1 g)",
        ),
    ],
)
def test_results_find_their_calls_by_id_or_else_by_order(messages: list[dict[str, Any]], shown: str) -> None:
    assert render(*messages) == shown


def test_a_template_of_nine_letters_and_digits_is_given_such_ids_and_results_the_same() -> None:
    shown = render(
        calls(call("{}", "call_made_by_another_model")), result(call_id="call_made_by_another_model"), template=NINE
    )
    made = shown.split("[")[1].split(" ")[0]
    assert len(made) == 9 and made.isalnum() and f"({made} f)" in shown
    assert render(calls(call("{}", "Ab3de6gh9")), template=NINE) == "<assistant>[Ab3de6gh9 f {}]"


def test_ids_that_count_are_counted_over_the_conversation() -> None:
    """Red when two turns show one id: the model then answers with an id that was used."""
    turn = [calls(call("{}", "call_0", "read")), result(call_id="call_0")]
    shown = render(*turn, USER, *turn, template=COUNTED)
    assert shown.count("functions.read:0") == shown.count("functions.read:1") == 2


@pytest.mark.parametrize(
    ("content", "shown"),
    [
        ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "a\nb"),
        ([], ""),
        (None, ""),
        ({"ok": True}, '{"ok": true}'),
        (["a", {"type": "input_text", "text": "b"}], "a\nb"),
    ],
)
def test_what_a_tool_returned_is_text_for_the_template(content: Any, shown: str) -> None:
    assert render(calls(call("{}")), result(content)).endswith(f"<tool>{shown}(c1 f)")


def test_an_image_that_a_tool_returned_is_named_and_one_of_the_users_refused() -> None:
    """Red when an agent's session ends because a tool took a screenshot."""
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    shown = render(calls(call("{}")), result([{"type": "text", "text": "see"}, image]))
    assert "see\n[The tool returned a part of type 'image_url' here, which this model cannot read" in shown
    with pytest.raises(InvalidRequest, match="takes text only") as refusal:
        render({"role": "user", "content": [image]})
    assert refusal.value.param == "messages[1].content[0].type"


def test_older_names_of_calls_and_results_are_read() -> None:
    old = {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}}
    assert render(old, {"role": "function", "name": "f", "content": "x"}) == "<assistant>[call_0 f {}]<tool>x(call_0 f)"


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning", "thinking"])
@pytest.mark.parametrize("template_name", ["reasoning_content", "reasoning", "thinking"])
def test_reasoning_comes_back_under_the_name_that_the_template_reads(name: str, template_name: str) -> None:
    template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{{ m." + template_name + " or '' }}{% endfor %}"
    assert render({"role": "assistant", "content": "so", name: "hm"}, template=template) == "<assistant>sohm"
    part = {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}
    parts = {"role": "assistant", "content": [part, {"type": "text", "text": "so"}]}
    assert render(parts, template=template) == "<assistant>sohm"


STRICT_TURNS = (
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('alternate') }}"
    "{% endif %}<{{ m.role }}>{{ m.content }}{% endfor %}"
)
SYSTEM_FIRST = (
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('first') }}{% endif %}"
    "<{{ m.role }}>{{ m.content }}{% endfor %}"
)
LATE = [
    {"role": "system", "content": "be brief"},
    {"role": "system", "content": "be kind"},
    {"role": "user", "content": "a"},
    {"role": "assistant", "content": "b"},
    {"role": "system", "content": "now in French"},
    {"role": "user", "content": "c"},
]


@pytest.mark.parametrize(
    ("template", "shown"),
    [
        (STRICT_TURNS, "<user>be brief\n\nbe kind\n\na<assistant>b<user>now in French\n\nc"),
        (SYSTEM_FIRST, "<system>be brief\n\nbe kind<user>a<assistant>b<user>now in French\n\nc"),
        (
            "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}",
            "<system>be brief<system>be kind<user>a<assistant>b<system>now in French<user>c",
        ),
    ],
)
def test_system_texts_anywhere_and_roles_in_a_row_reach_every_template(template: str, shown: str) -> None:
    """Red when a template's own rule about roles ends a session, or a text is lost on the way."""
    assert ChatTemplate(template).render(LATE, add_generation_prompt=False) == shown
