"""What answers consist of: typed parts, and the deltas in which they come. Structs, because one is made per token.

A part of a delta goes on in the part of the same kind before it: text in text, arguments in the arguments of the call
with the same index. Does not know how a model writes them (`output_parser`) nor how an API does (a `ReplyWriter`).
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from relevo.core.baton import SampledToken


class TextPart(msgspec.Struct, frozen=True, gc=False):
    text: str


class ReasoningPart(msgspec.Struct, frozen=True, gc=False):
    text: str


class RefusalPart(msgspec.Struct, frozen=True, gc=False):
    text: str


class ToolCallPart(msgspec.Struct, frozen=True, gc=False):
    index: int  # of the call in its choice, from 0
    arguments: str  # what follows of their JSON text
    id: str = ""  # in the first part of a call only, as is its name
    name: str = ""


Part = TextPart | ReasoningPart | RefusalPart | ToolCallPart


def text_of(parts: Iterable[Part]) -> str:
    """Their content alone."""
    return "".join(part.text for part in parts if isinstance(part, TextPart))


class Delta(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What one engine step added to one choice."""

    index: int  # of the choice, counted over all prompts: prompt * n + sample
    parts: tuple[Part, ...]
    tokens: tuple[SampledToken, ...]  # those that count
    text_offsets: tuple[int, ...] = ()  # per token: characters decoded before it; only if the answer tells tokens
    finish_reason: str | None = None  # "stop", "length" or "tool_calls"
    stop_reason: int | str | None = None  # the stop token id or stop string of the client's that ended it
