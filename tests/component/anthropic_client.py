"""What the tests of /v1/messages have in common: a request, a template that shows all of it, a parser, its events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import httpx
import orjson
from scripted_gateway import MODEL, TOKENIZER, Rig, Step, rig

from relevo.core.baton import SampledToken
from relevo.gateway.text.chat_template import ChatTemplate
from relevo.gateway.text.output_parser import ParserInput
from relevo.gateway.text.parts import Part, ReasoningPart, RefusalPart, TextPart, ToolCallPart

TEMPLATE = (
    "{% for tool in tools or () %}"
    "[tool {{ tool.function.name }} {{ tool.function.parameters | tojson }}]{{ '\n' }}{% endfor %}"
    "{% for m in messages %}<{{ m.role }}{% if m.name %} {{ m.name }}{% endif %}"
    "{% if m.tool_call_id is defined %} {{ m.tool_call_id }}{% endif %}>"
    "{% if m.reasoning_content %}({{ m.reasoning_content }}){% endif %}{{ m.content }}"
    "{% for call in m.tool_calls or () %}"
    "[{{ call.id }} {{ call.function.name }} {{ call.function.arguments | tojson }}]{% endfor %}"
    "{{ '\n' }}{% endfor %}{% if enable_thinking is defined %}thinking:{{ enable_thinking }}{{ '\n' }}{% endif %}"
    "{% if reasoning_effort is defined %}effort:{{ reasoning_effort }}{{ '\n' }}{% endif %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
WEATHER: dict[str, Any] = {"name": "w", "description": "d", "input_schema": {"type": "object"}}
OTHER: dict[str, Any] = {"name": "v", "input_schema": {"type": "object"}}


class MarkedCalls:
    """`?` begins reasoning, `!` a refusal, `@` a call whose name is one letter; `.` is text again. Arguments come as
    they are written."""

    def __init__(self, asked: ParserInput) -> None:
        self.asked = asked
        self.kind, self.is_unnamed, self.num_calls = ".", False, 0
        self.num_reasoning_tokens = 0
        self.is_complete = False
        self.is_broken_off = False

    def feed(self, text: str, tokens: Sequence[SampledToken]) -> tuple[Part, ...]:
        parts: list[Part] = []
        for char in text:
            if char in "?!@.":
                self.is_complete = self.kind == "@" and not self.asked.is_parallel
                self.kind, self.is_unnamed = char, char == "@"
                self.num_calls += char == "@"
            elif self.is_complete:
                break
            elif self.kind == "@":
                parts.append(self._in_call(char))
            else:
                self.num_reasoning_tokens += self.kind == "?"
                parts.append({"?": ReasoningPart, "!": RefusalPart, ".": TextPart}[self.kind](char))
        return tuple(parts)

    def _in_call(self, char: str) -> Part:
        index = self.num_calls - 1
        if not self.is_unnamed:
            return ToolCallPart(index, char)
        self.is_unnamed = False
        return ToolCallPart(index, "", f"toolu_{index}", char)

    def flush(self, *, is_cut: bool) -> tuple[Part, ...]:
        self.is_broken_off = is_cut and self.kind == "@"
        return ()


def marked(script: Any = (), **context: Any) -> Rig:
    settings: dict[str, Any] = {
        "make_parser": MarkedCalls,
        "chat_template": ChatTemplate(TEMPLATE),
        "max_model_len": 5000,
    }
    return rig(script, **(settings | context))


def body_of(**fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "max_tokens": 100, "messages": [{"role": "user", "content": "hi"}]} | fields


async def ask(r: Rig, headers: dict[str, str] | None = None, **fields: Any) -> httpx.Response:
    return await r.post("/v1/messages", body_of(**fields), **(headers or {}))


async def answered(script: Sequence[Step], **fields: Any) -> tuple[dict[str, Any], list[tuple[str, Any]]]:
    """Whole, and the events of the same answer streamed."""
    whole = await ask(marked(script), **fields)
    streamed = await ask(marked(script), stream=True, **fields)
    assert (whole.status_code, streamed.status_code) == (200, 200), whole.text + streamed.text
    return whole.json(), events(streamed.text)


def events(text: str) -> list[tuple[str, Any]]:
    """Name and payload of each; the name is the payload's type."""
    told = []
    for event in filter(None, text.split("\n\n")):
        name, data = event.split("\n")
        payload = orjson.loads(data.removeprefix("data: "))
        assert name == f"event: {payload['type']}"
        told.append((payload["type"], payload))
    return told


def joined(told: Sequence[tuple[str, Any]]) -> list[dict[str, Any]]:
    """The blocks of a stream, put together as clients do; a block is stopped before the next one starts."""
    blocks: list[dict[str, Any]] = []
    open_index: int | None = None
    for name, payload in told:
        match name:
            case "content_block_start":
                assert open_index is None and payload["index"] == len(blocks)
                open_index = payload["index"]
                blocks.append({**payload["content_block"], "json": ""})
            case "content_block_delta":
                assert payload["index"] == open_index
                member = {"partial_json": "json"}
                kind, (key, text) = payload["delta"].pop("type"), *payload["delta"].items()
                assert kind.startswith(("text", "thinking", "signature", "input_json"))
                blocks[-1][member.get(key, key)] += text
            case "content_block_stop":
                assert payload["index"] == open_index
                open_index = None
    assert open_index is None or told[-1][0] == "error"
    return blocks


def prompt_of(r: Rig) -> str:
    return TOKENIZER.decode(r.generator.requests[-1].prompt_token_ids)
