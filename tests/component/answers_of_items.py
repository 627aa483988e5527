"""What tests of the Responses API have in common: a model that writes marks, and readers of its answers that check
every event and every response against the official client's own types."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import httpx
import orjson
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter
from scripted_gateway import MODEL, Rig

from relevo.core.baton import SampledToken
from relevo.gateway.text.output_parser import ParserInput
from relevo.gateway.text.parts import Part, ReasoningPart, RefusalPart, TextPart, ToolCallPart

EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
REQUIRED = (  # keys that the official schema wants in every response, null or not
    *("id", "object", "created_at", "completed_at", "status", "incomplete_details", "model", "previous_response_id"),
    *("instructions", "output", "error", "tools", "tool_choice", "truncation", "parallel_tool_calls", "text", "top_p"),
    *("presence_penalty", "frequency_penalty", "top_logprobs", "temperature", "reasoning", "usage"),
    *("max_output_tokens", "max_tool_calls", "store", "background", "service_tier", "metadata", "safety_identifier"),
    "prompt_cache_key",
)


class Marked:
    """`?` begins reasoning, `!` a refusal, `@name ` a call whose arguments follow as they come, `.` text."""

    is_complete = False
    is_broken_off = False

    def __init__(self, asked: ParserInput) -> None:
        self.asked = asked
        self.kind, self.name, self.num_calls = ".", "", asked.num_earlier_calls
        self.index = -1
        self.num_reasoning_tokens = 0

    def feed(self, text: str, tokens: Sequence[SampledToken]) -> tuple[Part, ...]:
        parts: list[Part] = []
        for char in text:
            self.num_reasoning_tokens += self.kind == "?"
            if char in "?!@.":
                self.kind, self.name = char, ""
            elif self.kind == "@" and char == " ":
                self.kind, self.index = "args", self.index + 1
                parts.append(ToolCallPart(self.index, "", f"call_{self.num_calls}", self.name))
                self.num_calls += 1
            elif self.kind == "@":
                self.name += char
            elif self.kind == "args":
                parts.append(ToolCallPart(self.index, char))
            else:
                parts.append({"?": ReasoningPart, "!": RefusalPart, ".": TextPart}[self.kind](char))
        return tuple(parts)

    def flush(self, *, is_cut: bool) -> tuple[Part, ...]:
        return ()


FUNCTION: dict[str, Any] = {
    "type": "function",
    "name": "tide",
    "parameters": {"type": "object", "properties": {"port": {"type": "string"}}},
}


async def respond(r: Rig, asked: Any = "hi", **fields: Any) -> dict[str, Any]:
    """A whole response, checked."""
    answer = await r.post("/v1/responses", {"model": MODEL, "input": asked} | fields)
    assert answer.status_code == 200, answer.text
    return checked(answer.json())


async def stream(r: Rig, asked: Any = "hi", **fields: Any) -> list[dict[str, Any]]:
    """The events of a streamed response, checked: their types, names and numbers, and the life of every item."""
    answer = await r.post("/v1/responses", {"model": MODEL, "input": asked, "stream": True} | fields)
    assert answer.status_code == 200, answer.text
    found = events_of(answer)
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    assert [event["type"] for event in found[:2]] == ["response.created", "response.in_progress"]
    for event in found:
        EVENT.validate_python(event, strict=False)
    follow(found)
    checked(found[-1]["response"])
    return found


def events_of(answer: httpx.Response) -> list[dict[str, Any]]:
    blocks = [block.split("\n") for block in answer.text.split("\n\n") if block and not block.startswith(":")]
    found = [(name.removeprefix("event: "), orjson.loads(data.removeprefix("data: "))) for name, data in blocks]
    assert all(name == event["type"] for name, event in found)
    return [event for _, event in found]


def checked(response: dict[str, Any]) -> dict[str, Any]:
    Response.model_validate(response, strict=False)
    assert not [key for key in REQUIRED if key not in response]
    return response


def follow(found: Sequence[dict[str, Any]]) -> None:
    """Items are added, grow and are done one after the other; what they are at their end is what the response has."""
    done: list[dict[str, Any]] = []
    item: dict[str, Any] | None = None
    text, parts = "", list[dict[str, Any]]()
    for event in found[2:-1]:
        kind = event["type"].removeprefix("response.")
        assert event["output_index"] == len(done)
        if kind == "output_item.added":
            assert item is None
            item, text, parts = event["item"], "", []
            assert item["status"] == "in_progress"
            continue
        assert item is not None
        if kind == "output_item.done":
            assert (event["item"]["id"], event["item"]["type"]) == (item["id"], item["type"])
            assert event["item"].get("content", []) == parts
            done.append(event["item"])
            item = None
            continue
        assert event["item_id"] == item["id"]
        if "content_index" in event:
            assert event["content_index"] == len(parts)
        if kind == "content_part.added":
            text = ""
        elif kind == "content_part.done":
            parts.append(event["part"])
        elif kind.endswith(".delta"):
            text += event["delta"]
        else:
            assert kind.endswith(".done")
            said = [event[name] for name in ("text", "refusal", "arguments", "input") if name in event]
            assert said == [text]
    output, has_failed = found[-1]["response"]["output"], found[-1]["type"] == "response.failed"
    assert output[: len(done)] == done
    assert len(output) == len(done) + (item is not None)
    assert item is None or has_failed


def without_ids(value: Any) -> Any:
    """What two answers to the same request have in common."""
    if isinstance(value, dict):
        volatile = {"id", "item_id", "created_at", "completed_at"}
        return {name: without_ids(member) for name, member in value.items() if name not in volatile}
    return [without_ids(member) for member in value] if isinstance(value, list) else value
