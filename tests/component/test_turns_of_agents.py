"""What agents ask for all at once: calls, thoughts, formats, several choices and log probabilities in one request."""

from __future__ import annotations

from typing import Any

import pytest
from family_outputs import TOOLS
from held_walks import next_tokens, takes
from scripted_gateway import EOS, ids, says
from test_read_calls import CALL, PING, chunks, put_together, served, shown, two, whole

from relevo.core.request import FinishReason
from relevo.gateway.text.turns import TurnForm, fit_turns

FORMAT = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"const": {"k": 1}}, "strict": True}}
TIDE = '<tool_call>\n{"name": "tide", "arguments": {"port":"Brest"}}\n</tool_call>'
THINKS = {"enable_thinking": True}


async def alike(text: str, **fields: Any) -> dict[str, Any]:
    """The message, streamed and whole."""
    message, streamed = shown(await whole(says(text), **fields)), put_together(await chunks(says(text), **fields))
    for each in (message, streamed):
        assert all(call.pop("id") for call in each["calls"])
    assert message == streamed
    return message


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "tide"}}])
@pytest.mark.parametrize("is_open", [True, False])
async def test_a_forced_call_comes_behind_thoughts(choice: Any, is_open: bool) -> None:
    """Red when a thinking model's forced call is held from its first token, or ends as anything but a call."""
    asked: dict[str, Any] = {"tool_choice": choice, "chat_template_kwargs": {"enable_thinking": is_open}}
    message = await alike(f"hm</think>\n\n{CALL}" if is_open else CALL, **asked)
    assert (message["reasoning"], message["content"]) == ("hm" if is_open else "", "")
    assert [call["name"] for call in message["calls"]] == ["tide"] and message["finish_reason"] == "tool_calls"


async def test_thoughts_that_took_all_tokens_leave_no_call_and_say_so() -> None:
    """Not `tool_calls` with an empty list, and no error."""
    asked: dict[str, Any] = {"tool_choice": "required", "chat_template_kwargs": THINKS, "max_tokens": 5}
    script = says("hmmmm", end=FinishReason.LENGTH)
    body = await whole(script, **asked)
    message = shown(body)
    assert (message["finish_reason"], message["calls"], message["content"]) == ("length", [], "")
    assert message["reasoning"] and "tool_calls" not in body["choices"][0]["message"]
    assert put_together(await chunks(script, **asked)) == message


@pytest.mark.parametrize(
    ("answer", "calls", "content"),
    [(TIDE, ["tide"], ""), (f"{TIDE}\n{PING}", ["tide", "ping"], ""), ('{"k":1}', [], '{"k":1}')],
)
async def test_with_tools_and_a_schema_it_is_calls_or_content_behind_the_thoughts(
    answer: str, calls: list[str], content: str
) -> None:
    """Agents send both on every turn. Red when the tools can never be called, or the schema is dropped."""
    r = served(says(f"hm</think>{answer}"))
    asked: dict[str, Any] = {"response_format": FORMAT, "chat_template_kwargs": THINKS}
    assert (await r.chat(tools=TOOLS, **asked)).status_code == 200
    grammar = r.generator.requests[-1].sampling.grammar
    assert grammar is not None and takes(grammar, f"hm</think>{answer}")
    assert not takes(grammar, "hm</think>text") and not takes(grammar, 'hm</think>{"k":2}')
    assert next_tokens(grammar, "hm</think>") == {ord("<"), ord("{"), ord("\n")}
    message = await alike(f"hm</think>{answer}", **asked)
    assert ([call["name"] for call in message["calls"]], message["content"], message["reasoning"]) == (
        calls,
        content,
        "hm",
    )


async def test_two_choices_with_thoughts_calls_a_stop_string_and_log_probabilities() -> None:
    """Each at its own pace. Red when choices share a parser, a stop string cuts a call, or a token is told twice."""
    texts = (f"<think>a}}b</think>Hi.{CALL}", "<think>c</think>One} two")
    asked: dict[str, Any] = {"n": 2, "logprobs": True, "stop": ["}"]}
    body, streamed = await whole(two(*texts), **asked), await chunks(two(*texts), **asked)
    told = [shown(body, index) for index in (0, 1)]
    for index, message in enumerate(told):
        other = put_together(streamed, index)
        assert {**message, "calls": None} == {**other, "calls": None}
        assert [{**call, "id": 0} for call in message["calls"]] == [{**call, "id": 0} for call in other["calls"]]
        entries = body["choices"][index]["logprobs"]["content"]
        later = [
            entry
            for payload in streamed
            for choice in payload["choices"]
            if choice["index"] == index and choice.get("logprobs")
            for entry in choice["logprobs"]["content"]
        ]
        assert [entry["token"] for entry in later] == [entry["token"] for entry in entries]
        assert len(entries) == (len([*ids(texts[0]), EOS]) if index == 0 else len(ids(texts[1].partition(" two")[0])))
    assert [(m["reasoning"], m["content"], m["finish_reason"]) for m in told] == [
        ("a}b", "Hi.", "tool_calls"),
        ("c", "One", "stop"),
    ]
    assert body["usage"]["completion_tokens_details"]["reasoning_tokens"] == len(
        ids("<think>a}b</think><think>c</think>")
    )


async def test_ids_of_calls_are_unique_over_choices_and_turns() -> None:
    """Red with `call_0` again in each turn: results would find the wrong call."""
    found = [
        call["id"]
        for _ in range(3)
        for i in (0, 1)
        for call in shown(await whole(two(CALL + PING, CALL), n=2), i)["calls"]
    ]
    found += [call["id"] for call in put_together(await chunks(says(CALL + PING)))["calls"]]
    assert len(set(found)) == len(found) == 11 and all(found)


ODD: list[Any] = [
    {"properties": {"a": {"default": None}}},
    {"type": "object"},
    {"type": "object", "properties": {"a": {"type": "string", "pattern": "\\S"}}},
    {"type": "object", "properties": {"a": {"type": "string", "format": "path"}}},
    {"type": "object", "properties": None},
]


def declared(name: str, parameters: Any, **own: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters, **own}}


@pytest.mark.parametrize("fields", [{}, {"response_format": FORMAT}, {"tool_choice": "required"}])
async def test_thirty_tools_with_odd_schemas_are_taken_and_what_is_not_held_is_named(fields: dict[str, Any]) -> None:
    """Red when one tool's schema refuses a request that did not ask for it to be strict."""
    tools = [declared(f"odd{place}", schema) for place, schema in enumerate(ODD)] + [
        declared(f"t{place}", {"type": "object", "properties": {"x": {"type": "integer"}}}) for place in range(25)
    ]
    call = '<tool_call>{"name": "odd3", "arguments": {"a": "b"}}</tool_call>'
    answer = await served(says(call)).chat(tools=tools, **fields)
    assert answer.status_code == 200
    assert answer.json()["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "odd3"
    notes = answer.headers.get("x-relevo-notes", "")
    assert ("tool 'odd3': 'format' at /properties/a" in notes) is bool(fields)  # with none of them nothing is held
    assert "tool 't" not in notes
    refused = await served(says(call)).chat(tools=[*tools, declared("exact", ODD[3], strict=True)], **fields)
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "tools"
    assert "'exact'" in refused.json()["error"]["message"] and "/properties/a" in refused.json()["error"]["message"]


class _Counted(str):
    num_added = 0

    def __add__(self, other: str) -> _Counted:
        _Counted.num_added += len(self)
        return _Counted(str.__add__(self, other))


def test_many_short_turns_of_one_role_are_joined_once() -> None:
    """Red when each turn copies all before it: 100,000 of them took minutes."""
    turns: list[dict[str, Any]] = [{"role": "user", "content": _Counted("word")} for _ in range(2000)]
    turns += [{"role": "user", "content": ""}, {"role": "assistant", "content": ""}]
    joined = fit_turns(turns, TurnForm(takes_repeated_roles=False))
    assert joined == [{"role": "user", "content": "\n\n".join(["word"] * 2000)}, {"role": "assistant", "content": ""}]
    assert _Counted.num_added == 0
