"""OpenAI's streams and bodies, as both of its generating endpoints have them. Source: OpenAI API reference.

Owns the order of chunks: one that opens each choice, deltas, a finish chunk per choice, usage if it was asked for,
`[DONE]`; what every chunk says of usage; and the shortcut for the common chunk, one that brings text and nothing else:
all of it but the text is encoded once per choice. Does not know the shape of a chunk; that is a `ChunkShape`.

A failure after the first chunk is one `data: {"error": ...}` event and the end of the body, without `[DONE]`: the
OpenAI SDK raises APIError on the event, and no client can take the text for complete.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import orjson

from relevo.core.errors import RelevoError
from relevo.gateway.generation.finished_choice import FinishedChoice
from relevo.gateway.generation.reply_writer import Usage
from relevo.gateway.http.sse import KEEPALIVE_COMMENT, encode_event
from relevo.gateway.openai.errors import OPENAI_ERRORS
from relevo.gateway.openai.schemas import StreamOptions
from relevo.gateway.text.parts import Delta, TextPart

DONE_EVENT = b"data: [DONE]\n\n"
OPENING_BYTES = 64 * 1024  # arbitrary: so many bytes of opening chunks are written at once
_MARK = "\x00text\x00"  # stands where the text goes
_ENCODED_MARK = orjson.dumps(_MARK)

Frame = tuple[bytes, bytes]  # before the text and after it


class ChunkShape(Protocol):
    """The JSON of one endpoint."""

    @property
    def id(self) -> str: ...

    @property
    def tells_tokens(self) -> bool:
        """Whether the chunks of deltas show more than text."""
        ...

    @property
    def opens_late(self) -> bool:
        """Whether a choice opens with its first delta, because more of its prompt is shown than its text."""
        ...

    def opening(self, index: int) -> dict[str, Any] | None:
        """The chunk that opens a choice, before any text."""
        ...

    def logprobs(self, delta: Delta) -> dict[str, Any] | None: ...

    def delta(self, delta: Delta) -> dict[str, Any] | None:
        """The chunk for new parts or tokens; None if there is nothing to tell."""
        ...

    def finish(self, delta: Delta) -> dict[str, Any]: ...

    def usage_only(self) -> dict[str, Any]:
        """The chunk without choices that carries the usage."""
        ...

    def whole(self, choices: Sequence[FinishedChoice]) -> dict[str, Any]: ...


def usage_json(usage: Usage) -> dict[str, Any]:
    """Cached tokens are always told and are part of the prompt tokens."""
    return {
        "prompt_tokens": usage.num_prompt_tokens,
        "completion_tokens": usage.num_output_tokens,
        "total_tokens": usage.num_prompt_tokens + usage.num_output_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.num_cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.num_reasoning_tokens},
    }


def tier_json(service_tier: str | None) -> dict[str, str]:
    """Nothing where none was named: published schemas list the tiers, and null is not always among them."""
    return {} if service_tier is None else {"service_tier": service_tier}


@dataclass(slots=True)
class OpenAIWriter:
    """The `ReplyWriter` of both. `usage`: what the request has used up to now."""

    shape: ChunkShape
    num_choices: int
    usage: Callable[[], Usage]
    include_usage: bool = False
    continuous_usage: bool = False
    keepalive: bytes = KEEPALIVE_COMMENT
    _frames: dict[int, Frame | None] = field(default_factory=dict)
    _opened: set[int] = field(default_factory=set)  # choices that opened late

    @classmethod
    def of(
        cls, shape: ChunkShape, num_choices: int, usage: Callable[[], Usage], options: StreamOptions | None
    ) -> OpenAIWriter:
        include, continuous = (options.include_usage, options.continuous_usage_stats) if options else (None, None)
        return cls(shape, num_choices, usage, bool(include), bool(continuous))

    @property
    def response_id(self) -> str:
        return self.shape.id

    def begin(self) -> Iterator[bytes]:
        pending = bytearray()
        for index in range(0 if self.shape.opens_late else self.num_choices):
            opening = self.shape.opening(index)
            pending += b"" if opening is None else self._chunk(opening)
            if len(pending) > OPENING_BYTES:
                yield bytes(pending)
                pending.clear()
        yield bytes(pending)

    def delta(self, delta: Delta) -> bytes:
        parts, frames = delta.parts, self._frames
        if len(parts) == 1 and type(parts[0]) is TextPart:
            index = delta.index
            frame = frames[index] if index in frames else self._frame(index)
            if frame is not None:
                return frame[0] + orjson.dumps(parts[0].text) + frame[1]
        if self.shape.opens_late:
            return self._late_opening(delta.index) + self._any_delta(delta)
        return self._any_delta(delta)

    def _late_opening(self, index: int) -> bytes:
        if index in self._opened:
            return b""
        self._opened.add(index)
        opening = self.shape.opening(index)
        return b"" if opening is None else self._chunk(opening)

    def _any_delta(self, delta: Delta) -> bytes:
        chunk = self.shape.delta(delta)
        return b"" if chunk is None else self._chunk(chunk)

    def finish_choice(self, delta: Delta) -> bytes:
        return self._chunk(self.shape.finish(delta))

    def end(self) -> bytes:
        if not self.include_usage:
            return DONE_EVENT
        return encode_event(self.shape.usage_only() | {"usage": usage_json(self.usage())}) + DONE_EVENT

    def error(self, error: RelevoError) -> bytes:
        return OPENAI_ERRORS.stream_event(error, "")

    def logprobs(self, delta: Delta) -> Mapping[str, Any] | None:
        return self.shape.logprobs(delta)

    def whole(self, choices: Sequence[FinishedChoice]) -> bytes:
        return orjson.dumps(self.shape.whole(choices) | {"usage": usage_json(self.usage())})

    def _chunk(self, chunk: dict[str, Any]) -> bytes:
        if self.continuous_usage:
            chunk["usage"] = usage_json(self.usage())
        elif self.include_usage:
            chunk["usage"] = None
        return encode_event(chunk)

    def _frame(self, index: int) -> Frame | None:
        """None where chunks say more than text, where one has to open the choice first, or where the mark occurs in
        something else that a client sent."""
        parts: list[bytes] = []
        if not (self.continuous_usage or self.shape.tells_tokens or self.shape.opens_late):
            marked = self.shape.delta(Delta(index=index, parts=(TextPart(_MARK),), tokens=()))
            assert marked is not None, "it brings text"
            parts = self._chunk(marked).split(_ENCODED_MARK)
        frame = self._frames[index] = (parts[0], parts[1]) if len(parts) == 2 else None
        return frame
