"""Outputs of models as their cards and templates show them, written anew: one row per family, for every parser.

A row says what is written and what it means. A new family adds rows; the tests in `test_dialects.py` run over all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from relevo.core.baton import SampledToken
from relevo.core.ids import TokenId
from relevo.gateway.dialects.composed import ComposedParsers
from relevo.gateway.dialects.registry import REASONING_FORMATS, TOOL_FORMATS
from relevo.gateway.text.output_parser import OutputParser, ParserInput
from relevo.gateway.text.parts import Part, ReasoningPart, TextPart, ToolCallPart

Call = tuple[str, str]  # name, arguments


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    written: str
    calls: Sequence[Call] = ()
    content: str = ""
    reasoning: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    tools: str
    reasoning: str = "none"
    outputs: Sequence[Output] = ()
    template: str = ""  # with the family's marks, written anew: this format is chosen for it


def tool(name: str, **properties: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties}
    return {"type": "function", "function": {"name": name, "description": "", "parameters": parameters}}


TOOLS = [
    tool("tide", port={"type": "string"}, day={"type": "integer"}),
    tool("ping"),
    tool("put", body={"type": "string"}, parts={"type": "array"}),
]
HARD = '{"body": "a } \\" </tool_call> [", "parts": [{"x": "]"}, -1.5e3, null]}'


def in_pairs(before: str, middle: str, after: str, between: str) -> Output:
    """Three calls that differ in all that a family may confuse."""
    calls = [("tide", '{"port": "Brest", "day": 2}'), ("ping", "{}"), ("put", HARD)]
    return Output(written=between.join(f"{before}{name}{middle}{text}{after}" for name, text in calls), calls=calls)


def framed(output: Output, begin: str, end: str, content: str = "") -> Output:
    return Output(written=f"{content}{begin}{output.written}{end}", calls=output.calls, content=content.strip())


@dataclass(slots=True)
class Read:
    """What a parser made of an output, joined."""

    parts: list[Part] = field(default_factory=list)
    num_reasoning_tokens: int = field(default=0, compare=False)  # it depends on what one token was
    is_complete: bool = False
    is_broken_off: bool = False

    @property
    def calls(self) -> list[Call]:
        return [(part.name, part.arguments) for part in self.parts if isinstance(part, ToolCallPart)]

    @property
    def ids(self) -> list[str]:
        return [part.id for part in self.parts if isinstance(part, ToolCallPart)]

    @property
    def content(self) -> str:
        return "".join(part.text for part in self.parts if isinstance(part, TextPart))

    @property
    def reasoning(self) -> str:
        return "".join(part.text for part in self.parts if isinstance(part, ReasoningPart))


def parser_of(
    tools: str, reasoning: str = "none", *, asked_tools: Sequence[dict[str, Any]] = TOOLS, **asked: Any
) -> OutputParser:
    numbers = count()
    given: dict[str, Any] = {"prompt_token_ids": (), "tools": asked_tools, "draw_id": lambda: f"{next(numbers):024x}"}
    make = ComposedParsers(REASONING_FORMATS.get(reasoning), TOOL_FORMATS.get(tools))
    return make(ParserInput(**(given | asked)))


def read(parser: OutputParser, pieces: Sequence[str], *, is_cut: bool = False) -> Read:
    """One token per piece. What comes is checked as it comes: ids and names once, indices in order."""
    found = Read()
    for piece in pieces:
        _add(found, parser.feed(piece, (SampledToken(TokenId(0)),)))
        if parser.is_complete:
            break
    else:
        _add(found, parser.flush(is_cut=is_cut))
    found.num_reasoning_tokens = parser.num_reasoning_tokens
    found.is_complete, found.is_broken_off = parser.is_complete, parser.is_broken_off
    return found


def _add(found: Read, parts: Sequence[Part]) -> None:
    for part in parts:
        last = found.parts[-1] if found.parts else None
        if isinstance(part, ToolCallPart):
            if isinstance(last, ToolCallPart) and last.index == part.index:
                assert not part.id and not part.name, "a call is named in its first part alone"
                found.parts[-1] = ToolCallPart(last.index, last.arguments + part.arguments, last.id, last.name)
                continue
            assert part.index == len(found.calls) and part.id and part.name, "a call's first part names it, in order"
        elif isinstance(part, TextPart) and isinstance(last, TextPart):
            found.parts[-1] = TextPart(last.text + part.text)
            continue
        elif isinstance(part, ReasoningPart) and isinstance(last, ReasoningPart):
            found.parts[-1] = ReasoningPart(last.text + part.text)
            continue
        found.parts.append(part)
