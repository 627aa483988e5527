"""One choice of a whole answer, put together from its deltas; it keeps what the answer shows and nothing else."""

from __future__ import annotations

import io
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from relevo.gateway.text.parts import Delta, Part, ReasoningPart, RefusalPart, TextPart, ToolCallPart

CHAR_BYTES = 4  # at most, in memory


class KeptPart:
    """A part that later ones go on in."""

    def __init__(self, first: Part) -> None:
        self.first = first
        self._text = io.StringIO()

    def takes(self, part: Part) -> bool:
        if type(part) is not type(self.first):
            return False
        return not isinstance(part, ToolCallPart) or part.index == getattr(self.first, "index", None)

    def add(self, text: str) -> None:
        self._text.write(text)

    @property
    def text(self) -> str:
        """Of a tool call: its arguments."""
        return self._text.getvalue()


@dataclass(slots=True)
class FinishedChoice:
    index: int
    tells_tokens: bool = False
    parts: list[KeptPart] = field(default_factory=list)
    token_ids: array[int] = field(default_factory=lambda: array("q"))  # if the answer tells tokens
    logprobs: LogprobParts = field(default_factory=lambda: LogprobParts())
    finish_reason: str | None = None
    stop_reason: int | str | None = None

    def add(self, delta: Delta, logprobs: Mapping[str, Any] | None) -> int:
        """Returns about how many bytes it takes."""
        num_bytes = sum(self._add_part(part) for part in delta.parts) * CHAR_BYTES
        self.finish_reason, self.stop_reason = delta.finish_reason, delta.stop_reason
        if self.tells_tokens:
            self.token_ids.extend(token.token_id for token in delta.tokens)
            num_bytes += len(delta.tokens) * self.token_ids.itemsize
        return num_bytes + (self.logprobs.add(logprobs) if logprobs is not None else 0)

    @property
    def text(self) -> str:
        return self._joined(TextPart)

    @property
    def reasoning(self) -> str:
        return self._joined(ReasoningPart)

    @property
    def refusal(self) -> str:
        return self._joined(RefusalPart)

    @property
    def tool_calls(self) -> list[ToolCallPart]:
        """Each with all of its arguments."""
        kept = [(part.first, part.text) for part in self.parts]
        return [ToolCallPart(p.index, text, p.id, p.name) for p, text in kept if isinstance(p, ToolCallPart)]

    def _joined(self, kind: type[Part]) -> str:
        return "".join(part.text for part in self.parts if isinstance(part.first, kind))

    def _add_part(self, part: Part) -> int:
        text = part.arguments if isinstance(part, ToolCallPart) else part.text
        kept = self.parts[-1] if self.parts and self.parts[-1].takes(part) else None
        if kept is None:
            kept = KeptPart(part)
            self.parts.append(kept)
        kept.add(text)
        return len(text)


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

    def whole(self, empty: Mapping[str, Any]) -> dict[str, Any]:
        """For orjson alone. `empty`: the form without tokens."""
        joined = {name: orjson.Fragment(b"[" + b",".join(parts) + b"]") for name, parts in self._lists.items()}
        return {**empty, **self._others, **joined}
