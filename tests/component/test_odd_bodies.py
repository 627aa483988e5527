"""Whole requests of every API with something odd somewhere in them, however deep: answered or refused in words."""

from __future__ import annotations

import copy
import logging
import random
from collections.abc import Iterator
from typing import Any

import pytest
from anthropic_client import TEMPLATE
from scripted_gateway import MODEL, Rig, rig, says

from relevo.gateway.dialects.composed import ComposedParsers
from relevo.gateway.dialects.registry import REASONING_FORMATS, TOOL_FORMATS
from relevo.gateway.text.chat_template import ChatTemplate

NUM_BODIES = 120  # of each path
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "port": {"type": "string", "pattern": "^a+$"},
        "day": {"type": ["integer", "null"], "minimum": 0},
        "all": {"type": "array", "items": {"$ref": "#/$defs/x"}, "minItems": 1},
    },
    "required": ["port"],
    "additionalProperties": False,
    "$defs": {"x": {"enum": [1, "b"]}},
}
FUNCTION = {"name": "tide", "description": "d", "parameters": SCHEMA, "strict": True}
TEXT = {"type": "text", "text": "hi"}
CHAT: dict[str, Any] = {
    "messages": [
        {"role": "developer", "content": [TEXT]},
        {"role": "user", "content": "hi", "name": "n"},
        {
            "role": "assistant",
            "content": None,
            "reasoning_content": "r",
            "tool_calls": [{"id": "a", "type": "function", "function": {"name": "tide", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "a", "content": [TEXT]},
    ],
    "tools": [{"type": "function", "function": FUNCTION}],
    "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "tide"}]},
    "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}},
    "stop": ["x"],
    "stream_options": {"include_usage": True},
    "chat_template_kwargs": {"enable_thinking": True},
    "metadata": {"user_id": '{"session_id": 1}'},
}
RESPONSE: dict[str, Any] = {
    "input": [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "t"}], "encrypted_content": "rv1.AAAA"},
        {"type": "function_call", "call_id": "c", "name": "tide", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_image", "image_url": "x"}]},
        {"type": "local_shell_call", "call_id": "e", "action": {"command": ["ls"]}},
        {"role": "assistant", "content": [{"type": "output_text", "text": "x"}]},
    ],
    "tools": [
        {"type": "function", **FUNCTION},
        {"type": "custom", "name": "raw", "format": {"type": "grammar", "syntax": "lark", "definition": "start: X"}},
        {"type": "namespace", "name": "ns", "tools": [{"type": "function", "name": "p", "parameters": {}}]},
    ],
    "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "tide"}]},
    "text": {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA, "strict": True}},
    "reasoning": {"effort": "low"},
    "include": ["reasoning.encrypted_content"],
}
MESSAGE: dict[str, Any] = {
    "max_tokens": 9,
    "system": [{**TEXT, "cache_control": {"type": "ephemeral"}}],
    "messages": [
        {"role": "user", "content": [TEXT, {"type": "document", "source": {"type": "text", "data": "d"}}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "t", "signature": "s"},
                {"type": "tool_use", "id": "t1", "name": "tide", "input": {"port": "a"}},
            ],
        },
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": [TEXT]}]},
    ],
    "tools": [{"name": "tide", "description": "d", "input_schema": SCHEMA}],
    "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
    "thinking": {"type": "enabled", "budget_tokens": 1024},
    "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}},
}
BODIES = {
    "/v1/chat/completions": CHAT,
    "/v1/responses": RESPONSE,
    "/v1/responses/input_tokens": RESPONSE,
    "/v1/messages": MESSAGE,
    "/v1/messages/count_tokens": MESSAGE,
}
ODD: tuple[Any, ...] = (
    *(None, True, 0, -1, 2**64, 1.5, "", "x", "\n", "\0", "é\r\nX-Evil: 1", "a" * 3000, "{", "🦀"),
    *([], {}, [[]], [{}], [None], {"": {}}, {"type": []}, {"type": "x"}, {"$ref": "#"}, {"$ref": 1}, {"not": {}}),
    *({"type": "string", "pattern": "["}, {"enum": []}, {"allOf": []}, {"anyOf": 1}, {"role": "user"}, {"id": {}}),
    *("auto", "none", "required", "item_reference", "function_call", "message", "json_object", "tool", "system"),
)
PYTHON = (
    "Traceback",
    "NoneType",
    "object at 0x",
    "unhashable",
    "{'type",
    "{'$ref",
    "{'role",
    "internal_error",
    "has no attribute",
)
WRITTEN = '<think>\nhm\n</think>\nSo.<tool_call>\n{"name": "tide", "arguments": {"port": "a"}}\n</tool_call>'


def model() -> Rig:
    tools, reasoning = TOOL_FORMATS["hermes"], REASONING_FORMATS["qwen3"]
    return rig(
        says(WRITTEN, tokens_per_step=7),
        chat_template=ChatTemplate(TEMPLATE),
        make_parser=ComposedParsers(reasoning, tools),
        tool_format=tools,
        reasoning_format=reasoning,
        max_model_len=50_000,
    )


def places(value: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    members = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, member in members:
        yield (*above, key)
        yield from places(member, (*above, key))


def mutated(body: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    made: dict[str, Any] = copy.deepcopy({"model": MODEL, "stream": rng.random() < 0.3} | body)
    for name in [name for name in body if name not in ("messages", "input", "max_tokens") and rng.random() < 0.6]:
        del made[name]
    for _ in range(rng.choice((1, 1, 2))):
        *above, last = rng.choice(list(places(made)))
        holder: Any = made
        for key in above:
            holder = holder[key]
        chance = rng.random()
        if chance < 0.7:
            holder[last] = copy.deepcopy(rng.choice(ODD))
        elif chance < 0.85:
            del holder[last]
        elif isinstance(holder, list):
            holder.insert(0, copy.deepcopy(rng.choice(ODD)))
        else:
            holder[rng.choice(("type", "id", "$ref", "content", "name", "x\r\ny", ""))] = copy.deepcopy(rng.choice(ODD))
    return made


@pytest.mark.parametrize("path", BODIES)
async def test_a_body_with_something_odd_in_it_is_no_failure(path: str, caplog: pytest.LogCaptureFixture) -> None:
    """Red if any place took a value of the wrong kind for one of the right, or an error spoke Python."""
    rng, server, statuses = random.Random(path), model(), set[int]()
    for _ in range(NUM_BODIES):
        body = mutated(BODIES[path], rng)
        answer = await server.post(path, body)
        assert answer.status_code < 500, (body, answer.text)
        if answer.status_code >= 400:
            assert not any(word in answer.text for word in PYTHON), (body, answer.text)
        assert all("\n" not in value and "\r" not in value for value in answer.headers.values()), body
        statuses.add(answer.status_code)
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert {200, 400} <= statuses


@pytest.mark.parametrize("kind", [{"type": "function"}, ["input_text"], 1, None])
async def test_a_part_of_an_item_whose_type_is_no_text_is_refused(kind: Any) -> None:
    """Red if it were looked up among the known ones: a dictionary cannot be."""
    item = {"role": "user", "content": [{"type": kind, "text": "hi"}]}
    answer = await model().post("/v1/responses", {"model": MODEL, "input": [item]})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "input[0].content[0].type")
    result = {"type": "function_call_output", "call_id": "c", "output": [{"type": kind, "text": "hi"}]}
    answer = await model().post("/v1/responses", {"model": MODEL, "input": [item | {"content": "q"}, result]})
    assert answer.status_code == 200, answer.text


async def test_too_many_tools_are_refused_before_they_are_read() -> None:
    """Red if each were compared with all others first."""
    inner = [{"type": "function", "name": f"p{number}"} for number in range(1025)]
    tools = [{"type": "namespace", "name": "ns", "tools": inner}]
    answer = await model().post("/v1/responses", {"model": MODEL, "input": "q", "tools": tools})
    assert answer.status_code == 400 and "1025 tools; at most 1024" in answer.json()["error"]["message"]
