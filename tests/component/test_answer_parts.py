"""What a model's output parser finds reaches the client as typed parts, streamed and whole, one parser per choice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from scripted_gateway import events, rig, says

from relevo.core.baton import SampledToken
from relevo.gateway.text.output_parser import ParserInput
from relevo.gateway.text.parts import Part, ReasoningPart, RefusalPart, TextPart, ToolCallPart


class Marked:
    """`?` begins reasoning, `!` a refusal, `@` a call whose name is one letter; `.` is text again. A call comes
    at its end: held back, as parsers do."""

    num_reasoning_tokens = 0
    is_complete = False
    is_broken_off = False

    def __init__(self, asked: ParserInput) -> None:
        self.asked = asked
        self.kind, self.held, self.num_calls = ".", "", 0

    def feed(self, text: str, tokens: Sequence[SampledToken]) -> tuple[Part, ...]:
        parts: list[Part] = []
        for char in text:
            if char in "?!@.":
                parts += self.flush()
                self.kind = char
            elif self.kind == "@":
                self.held += char
            else:
                parts.append({"?": ReasoningPart, "!": RefusalPart, ".": TextPart}[self.kind](char))
        return tuple(parts)

    def flush(self, *, is_cut: bool = False) -> tuple[Part, ...]:
        held, self.held = self.held, ""
        if not held:
            return ()
        index, self.num_calls = self.num_calls, self.num_calls + 1
        name = f"{held[0]}{len(self.asked.tools)}"
        return ToolCallPart(index, "", f"call{index}", name), ToolCallPart(index, held[1:])


WRITTEN = "?hm.Hi @a{}@b[].!no"
TOOLS: list[dict[str, Any]] = [{"type": "function", "function": {"name": "a"}}]


async def test_a_whole_message_has_every_kind_of_part() -> None:
    body = (await rig(says(WRITTEN), make_parser=Marked).chat(tools=TOOLS)).json()
    message = body["choices"][0]["message"]
    assert (message["content"], message["refusal"]) == ("Hi ", "no")
    assert message["reasoning"] == message["reasoning_content"] == "hm"
    assert message["tool_calls"] == [
        {"id": "call0", "type": "function", "function": {"name": "a1", "arguments": "{}"}},
        {"id": "call1", "type": "function", "function": {"name": "b1", "arguments": "[]"}},
    ]


async def test_a_stream_has_the_same_parts_one_after_the_other() -> None:
    """Red if a call's id or name came twice, or if parts of one kind were shown as another."""
    payloads = events(await rig(says(WRITTEN), make_parser=Marked).chat(tools=TOOLS, stream=True))
    deltas = [payload["choices"][0]["delta"] for payload in payloads if isinstance(payload, dict)]
    assert "".join(delta.get("content", "") for delta in deltas) == "Hi "
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "hm"
    assert "".join(delta.get("refusal", "") for delta in deltas) == "no"
    assert [call for delta in deltas for call in delta.get("tool_calls", ())] == [
        {"index": 0, "id": "call0", "type": "function", "function": {"name": "a1", "arguments": ""}},
        {"index": 0, "function": {"arguments": "{}"}},
        {"index": 1, "id": "call1", "type": "function", "function": {"name": "b1", "arguments": ""}},
        {"index": 1, "function": {"arguments": "[]"}},
    ]


async def test_each_choice_has_a_parser_of_its_own() -> None:
    script = [step for pair in zip(says("?a.b", sample=0), says("x?y.", sample=1), strict=True) for step in pair]
    choices = (await rig(script, make_parser=Marked).chat(n=2)).json()["choices"]
    shown = [(choice["message"]["content"], choice["message"]["reasoning"]) for choice in choices]
    assert shown == [("b", "a"), ("x", "y")]


async def test_a_stop_string_ends_content_only() -> None:
    body = (await rig(says("?ENDless.so END and on"), make_parser=Marked).chat(stop="END")).json()
    choice = body["choices"][0]
    assert (choice["message"]["reasoning"], choice["message"]["content"]) == ("ENDless", "so ")
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", "END")


async def test_a_plain_prompt_is_gone_on_with_as_it_is() -> None:
    assert (await rig(says(WRITTEN), make_parser=Marked).complete()).json()["choices"][0]["text"] == WRITTEN
