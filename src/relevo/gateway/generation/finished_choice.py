"""One choice of a whole answer, put together from its deltas; it keeps what the answer shows and nothing else."""

from __future__ import annotations

import io
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from relevo.gateway.text.parts import Delta, Part, ToolCallPart

CHAR_BYTES = 4  # at most, in memory


@dataclass(slots=True)
class FinishedChoice:
    index: int
    tells_tokens: bool = False
    token_ids: array[int] = field(default_factory=lambda: array("q"))  # if the answer tells tokens
    logprobs: LogprobParts = field(default_factory=lambda: LogprobParts())
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    _parts: list[tuple[Part, io.StringIO]] = field(default_factory=list)  # how each began, and all of its text

    def add(self, delta: Delta, logprobs: Mapping[str, Any] | None) -> int:
        """Returns about how many bytes it takes."""
        num_bytes = sum(map(self._add_part, delta.parts)) * CHAR_BYTES
        self.finish_reason, self.stop_reason = delta.finish_reason, delta.stop_reason
        if self.tells_tokens:
            self.token_ids.extend(token.token_id for token in delta.tokens)
            num_bytes += len(delta.tokens) * self.token_ids.itemsize
        return num_bytes + (self.logprobs.add(logprobs) if logprobs is not None else 0)

    @property
    def parts(self) -> list[Part]:
        """Each whole, in the order in which they began."""
        return [_with_text(first, text.getvalue()) for first, text in self._parts]

    def _add_part(self, part: Part) -> int:
        text = part.arguments if isinstance(part, ToolCallPart) else part.text
        if not (self._parts and _goes_on(self._parts[-1][0], part)):
            self._parts.append((part, io.StringIO()))
        return self._parts[-1][1].write(text)


def _goes_on(first: Part, part: Part) -> bool:
    return type(part) is type(first) and getattr(part, "index", 0) == getattr(first, "index", 0)


def _with_text(first: Part, text: str) -> Part:
    if isinstance(first, ToolCallPart):
        return ToolCallPart(first.index, text, first.id, first.name)
    return type(first)(text)


class LogprobParts:
    """What an answer says of its tokens' probabilities, kept as JSON as its tokens come.

    Objects would take ten times the memory, and the event loop would stand still while all of them became JSON at once.
    """

    def __init__(self) -> None:
        self._lists: dict[str, list[bytes]] = {}
        self._others: dict[str, Any] = {}

    def add(self, shown: Mapping[str, Any]) -> int:
        """What follows in the same form. Returns how many bytes it takes."""
        num_bytes = 0
        for name, value in shown.items():
            if isinstance(value, list):
                part = orjson.dumps(value)[1:-1]
                if part:
                    self._lists.setdefault(name, []).append(part)
                num_bytes += len(part)
            else:
                self._others[name] = value
        return num_bytes

    def after(self, earlier: LogprobParts) -> LogprobParts:
        """This, with what is `earlier` before it. Neither changes."""
        joined = LogprobParts()
        for name in {**earlier._lists, **self._lists}:
            joined._lists[name] = [*earlier._lists.get(name, ()), *self._lists.get(name, ())]
        joined._others = {**earlier._others, **self._others}
        return joined

    def whole(self, empty: Mapping[str, Any]) -> dict[str, Any]:
        """For orjson alone. `empty`: the form without tokens."""
        joined = {name: orjson.Fragment(b"[" + b",".join(parts) + b"]") for name, parts in self._lists.items()}
        return {**empty, **self._others, **joined}
