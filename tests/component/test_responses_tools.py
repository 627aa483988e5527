"""Tools of the Responses API: functions, custom tools with raw text, namespaces, what is left out, and the choice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson
import pytest
from answers_of_items import FUNCTION, Marked, respond, stream, without_ids
from scripted_gateway import MODEL, TOKENIZER, rig, says

from relevo.core.request import FinishReason
from relevo.gateway.responses.raw_input import RawInput
from relevo.gateway.responses.tools import DeclaredTools, declared_tools, tool_choice
from relevo.gateway.text.chat_template import ChatTemplate

GRAMMAR = 'start: "*** Begin Patch" LF\nLF: "\\n"'
PATCH = {
    "type": "custom",
    "name": "patch",
    "description": "Change files.",
    "format": {"type": "grammar", "syntax": "lark", "definition": GRAMMAR},
}
NAMESPACE = {
    "type": "namespace",
    "name": "agents",
    "description": "Other agents.",
    "tools": [{"type": "function", "name": "spawn", "strict": False, "parameters": {"type": "object"}}],
}
RAW = 'say "é🚀"\n\tend\\'
SHOWS_TOOLS = ChatTemplate(
    "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}"
    "{% for m in messages %}{{ m.role }}:{{ m.content }}"
    "{% for c in m.tool_calls %}<{{ c.function.name }}>{% endfor %}{{ '\\n' }}{% endfor %}"
)


def declared(*tools: dict[str, Any]) -> tuple[DeclaredTools, list[str]]:
    left_out: list[str] = []
    return declared_tools(tools, left_out.extend), left_out


def arguments_of(text: str, *, is_escaped: bool) -> str:
    """`is_escaped`: as a model may write it that escapes all it can."""
    encoded = orjson.dumps(text).decode()
    if is_escaped:
        encoded = encoded.replace("é", "\\u00e9").replace("🚀", "\\ud83d\\ude80")
    return f'{{"input": {encoded}}}'


@pytest.mark.parametrize("is_escaped", [False, True])
@pytest.mark.parametrize("tokens_per_step", [1, 5, 200])
async def test_a_custom_tool_is_called_with_raw_text(is_escaped: bool, tokens_per_step: int) -> None:
    """Red if the JSON around it was shown, an escape was cut in two, or the call was a function's."""
    arguments = arguments_of(RAW, is_escaped=is_escaped)
    script = says(f"@patch {arguments}", tokens_per_step=tokens_per_step)
    events = await stream(rig(script, make_parser=Marked), tools=[PATCH])
    (call,) = events[-1]["response"]["output"]
    assert (call["type"], call["name"], call["input"]) == ("custom_tool_call", "patch", RAW)
    deltas = [event["delta"] for event in events if event["type"] == "response.custom_tool_call_input.delta"]
    assert "".join(deltas) == RAW
    assert len(deltas) > 1 or tokens_per_step > 1
    whole = await respond(rig(script, make_parser=Marked), tools=[PATCH])
    assert without_ids(whole["output"]) == without_ids([call])


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ('{"input":"x"}', "x"),
        (' { "input" : "" } ', ""),
        ('{"other":1,"input":"x"}', "x"),
        ('{"patch":"x"}', '{"patch":"x"}'),
        ("*** Begin Patch", "*** Begin Patch"),
        ('{"input":5}', '{"input":5}'),
        ('{"input":"\\ud83d"}', "\ufffd"),
        ('{"input":"\\ud83dx"}', "\ufffdx"),
        ('{"input":"\\uZZZZ"}', "\\uZZZZ"),
    ],
)
def test_raw_text_is_taken_out_of_any_arguments_however_they_are_cut(arguments: str, text: str) -> None:
    """Red if what a model wrote in another form than the shown one was lost."""
    for size in (1, 2, 3, 1000):
        raw = RawInput()
        told = [raw.feed(arguments[start : start + size]) for start in range(0, len(arguments), size)]
        assert "".join(told) + raw.flush() == text


@pytest.mark.parametrize("written", ['@patch {"input":"half', '@patch {"inp', '@patch {"input":"x\\u00'])
async def test_a_custom_call_that_was_cut_is_incomplete(written: str) -> None:
    script = says(written, end=FinishReason.LENGTH)
    events = await stream(rig(script, make_parser=Marked), tools=[PATCH], max_output_tokens=50)
    assert events[-1]["type"] == "response.incomplete"
    assert [item["status"] for item in events[-1]["response"]["output"]] == ["incomplete"]


async def test_a_function_of_a_namespace_is_shown_and_its_call_says_the_namespace() -> None:
    """Red if a client could not route the call, or the next turn showed it by another name."""
    r = rig(says("@spawn {}"), make_parser=Marked, chat_template=SHOWS_TOOLS, max_model_len=5000)
    (call,) = (await stream(r, tools=[NAMESPACE, FUNCTION]))[-1]["response"]["output"]
    assert (call["name"], call["namespace"]) == ("spawn", "agents")
    whole = await respond(r, [{"role": "user", "content": "q"}, call], tools=[NAMESPACE, FUNCTION])
    assert whole["output"][0]["namespace"] == "agents"
    assert "assistant:<spawn>" in TOKENIZER.decode(list(r.generator.requests[-1].prompt_token_ids))


def test_functions_of_two_namespaces_that_are_called_alike_are_shown_by_both_names() -> None:
    tools, _ = declared(NAMESPACE, NAMESPACE | {"name": "bots"})
    assert list(tools.by_shown_name) == ["agents__spawn", "bots__spawn"]
    assert tools.called("bots__spawn").namespace == "bots"
    assert tools.shown_name("spawn", "agents") == "agents__spawn"


def test_a_custom_tool_is_shown_as_a_function_of_one_text_with_its_grammar() -> None:
    tools, _ = declared(PATCH)
    function = tools.shown[0]["function"]
    assert function["parameters"]["properties"] == {"input": {"type": "string"}}
    assert function["description"].startswith("Change files.\n")
    assert GRAMMAR in function["description"]


def test_a_function_is_strict_unless_it_says_otherwise() -> None:
    tools, _ = declared(FUNCTION, FUNCTION | {"name": "loose", "strict": False})
    assert [tool["function"].get("strict", False) for tool in tools.shown] == [True, False]


async def test_hosted_tools_are_left_out_and_named_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    hosted: list[dict[str, Any]] = [{"type": "web_search", "external_web_access": True}, {"type": "image_generation"}]
    r = rig(says("ok"), chat_template=SHOWS_TOOLS, max_model_len=5000)
    response = await respond(r, tools=[*hosted, FUNCTION])
    assert [tool["type"] for tool in response["tools"]] == ["web_search", "image_generation", "function"]
    assert "tools.image_generation,tools.web_search" in caplog.text or "tools.web_search" in caplog.text


async def test_a_call_of_a_tool_that_nobody_declared_is_the_client_s_to_answer() -> None:
    for response in (
        await respond(rig(says("@nosuch {}"), make_parser=Marked), tools=[FUNCTION]),
        (await stream(rig(says("@nosuch {}"), make_parser=Marked), tools=[FUNCTION]))[-1]["response"],
    ):
        assert [(item["type"], item["name"]) for item in response["output"]] == [("function_call", "nosuch")]


@pytest.mark.parametrize(
    ("asked", "mode", "names"),
    [
        (None, "auto", ()),
        ("auto", "auto", ()),
        ("none", "none", ()),
        ("required", "required", ()),
        ({"type": "function", "name": "tide"}, "required", ("tide",)),
        ({"type": "function", "function": {"name": "tide"}}, "required", ("tide",)),
        ({"type": "custom", "name": "patch"}, "required", ("patch",)),
        ({"type": "function", "name": "spawn", "namespace": "agents"}, "required", ("spawn",)),
        (
            {
                "type": "allowed_tools",
                "mode": "auto",
                "tools": [{"type": "function", "name": "tide"}, {"type": "web_search"}],
            },
            "auto",
            ("tide",),
        ),
        (
            {"type": "allowed_tools", "mode": "required", "tools": [{"type": "custom", "name": "patch"}]},
            "required",
            ("patch",),
        ),
        ({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "web_search"}]}, "none", ()),
    ],
)
def test_every_form_of_tool_choice_is_understood(asked: Any, mode: str, names: tuple[str, ...]) -> None:
    tools, _ = declared(FUNCTION, PATCH, NAMESPACE)
    choice = tool_choice(asked, tools, is_parallel=False)
    assert (choice.mode, choice.names, choice.is_parallel) == (mode, names, False)


@pytest.mark.parametrize(
    ("tools", "choice", "param"),
    [
        ([], "required", "tool_choice"),
        ([{"type": "web_search"}], "required", "tool_choice"),
        ([FUNCTION], "always", "tool_choice"),
        ([FUNCTION], {"type": "function", "name": "nosuch"}, "tool_choice"),
        ([FUNCTION], {"type": "web_search"}, "tool_choice"),
        ([FUNCTION], {"type": "allowed_tools", "mode": "auto", "tools": []}, "tool_choice.tools"),
        ([FUNCTION], {"type": "allowed_tools", "tools": [{"type": "function", "name": "x"}]}, "tool_choice.tools[0]"),
        ([FUNCTION, FUNCTION], "auto", "tools[1].name"),
        ([{"name": "x"}], "auto", "tools[0].type"),
        ([{"type": "function"}], "auto", "tools[0].name"),
        ([FUNCTION | {"parameters": 3}], "auto", "tools[0].parameters"),
        ([PATCH | {"format": {"type": "grammar", "syntax": "abnf"}}], "auto", "tools[0].format"),
        ([NAMESPACE | {"tools": [{"type": "web_search"}]}], "auto", "tools[0].tools[0].type"),
    ],
)
async def test_tools_that_cannot_be_understood_are_refused_with_their_place(
    tools: Sequence[dict[str, Any]], choice: Any, param: str
) -> None:
    body = {"model": MODEL, "input": "q", "tools": tools, "tool_choice": choice, "stream": True}
    answer = await rig(says("ok"), max_model_len=5000).post("/v1/responses", body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


@pytest.mark.parametrize("tools", [[], None])
async def test_no_tools_are_no_tools_in_whatever_way_it_is_said(tools: Any) -> None:
    assert (await respond(rig(says("ok")), tools=tools, tool_choice="auto"))["tools"] == []
