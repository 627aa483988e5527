"""Outputs fed to parsers, cut in every way, and what comes out joined."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from relevo.gateway.dialects.formats import ToolFormat
from relevo.gateway.text.output_parser import ParserInput
from relevo.gateway.text.parts import Part, ReasoningPart, TextPart, ToolCallPart


def tool(name: str, **properties: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "$defs": {"spot": {"type": "object"}}}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


TOOLS = [
    tool("ping"),
    tool("tide", port={"type": "string"}, days={"type": "integer"}, deep={"type": "boolean"}),
    tool("put", body={"type": "string"}, path={"type": "string"}),
    tool(
        "find",
        zip={"type": "string"},
        n={"type": ["integer", "null"]},
        ok={"anyOf": [{"type": "boolean"}, {"type": "null"}]},
        d={"$ref": "#/$defs/spot"},
        tags={"type": "array"},
    ),
]

Call = tuple[str, str]
Joined = tuple[str, str, list[Call]]


def asked(tools: Sequence[Mapping[str, Any]] = TOOLS, **changed: Any) -> ParserInput:
    ids = iter(f"{number:024x}" for number in range(10_000))
    return ParserInput(prompt_token_ids=(), tools=tools, draw_id=lambda: next(ids), **changed)


def joined(parts: Iterable[Part]) -> Joined:
    """Text, reasoning and calls, each whole; and what every stream of parts must keep to."""
    text, reasoning = "", ""
    calls: list[list[str]] = []
    ids: set[str] = set()
    for part in parts:
        if isinstance(part, ToolCallPart):
            if part.index == len(calls):
                assert part.id and part.name, "a call's first part has its id and name"
                assert part.id not in ids, "each call has its own id"
                ids.add(part.id)
                calls.append([part.name, ""])
            else:
                assert part.index == len(calls) - 1, "calls come one after another"
                assert not part.id and not part.name, "later parts have arguments only"
            calls[part.index][1] += part.arguments
        elif isinstance(part, ReasoningPart):
            reasoning += part.text
        else:
            assert isinstance(part, TextPart)
            assert part.text, "no part is empty"
            text += part.text
    return text, reasoning, [(name, arguments) for name, arguments in calls]


def cuts(output: str, num: int, seed: int = 0) -> list[list[str]]:
    """The output in pieces: whole, by characters, and cut at random."""
    draw = random.Random(seed)
    found = [[output], list(output)]
    for _ in range(num):
        places = sorted(draw.sample(range(len(output) + 1), min(len(output), draw.randint(1, 12))))
        edges = [0, *places, len(output)]
        found.append([output[begin:end] for begin, end in itertools.pairwise(edges)])
    return found


def parsed(style: ToolFormat, pieces: Iterable[str], *, is_cut: bool = False, **changed: Any) -> Joined:
    parser = style.parser(asked(**changed))
    parts: list[Part] = []
    for piece in pieces:
        parts += parser.feed(piece)
    parts += parser.flush(is_cut=is_cut)
    return joined(parts)


def parsed_alike(style: ToolFormat, output: str, *, is_cut: bool = False, num: int = 50, **changed: Any) -> Joined:
    """However the output is cut: the same, or the test fails."""
    whole, *others = (parsed(style, pieces, is_cut=is_cut, **changed) for pieces in cuts(output, num))
    assert all(other == whole for other in others), output
    return whole


def mutated(output: str, seed: int) -> str:
    """With some stretches lost, doubled or moved."""
    draw = random.Random(seed)
    text = output
    for _ in range(draw.randint(1, 4)):
        begin = draw.randrange(len(text) + 1)
        end = min(len(text), begin + draw.randint(1, 14))
        change: Callable[[str], str] = draw.choice(
            [
                lambda cut: "",
                lambda cut: cut + cut,
                lambda cut: cut[::-1],
                lambda cut: cut + "<",
                lambda cut: "\n" + cut,
            ]
        )
        text = text[:begin] + change(text[begin:end]) + text[end:]
    return text


def values(calls: Iterable[Call]) -> list[tuple[str, Any]]:
    return [(name, json.loads(arguments)) for name, arguments in calls]
