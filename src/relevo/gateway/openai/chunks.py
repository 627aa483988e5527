"""Chunks of a streamed answer as server-sent events.

Owns what every chunk says of usage, and the shortcut for the common chunk, one that brings text and nothing else: all
of it but the text is encoded once per choice. Does not know the shape of a chunk; that is the answer format's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import orjson

from relevo.gateway.http.sse import encode_event
from relevo.gateway.text.generation import TextDelta

_MARK = "\x00text\x00"  # stands where the text goes
_ENCODED_MARK = orjson.dumps(_MARK)

Frame = tuple[bytes, bytes]  # before the text and after it


class DeltaFormat(Protocol):
    @property
    def tells_tokens(self) -> bool:
        """Whether the chunks of deltas show more than text."""
        ...

    def delta(self, index: int, delta: TextDelta) -> dict[str, Any] | None: ...


class ChunkEncoder:
    """One answer's. `usage_now` is asked for each chunk; None: chunks say nothing of usage."""

    def __init__(self, answer_format: DeltaFormat, usage_now: Callable[[], dict[str, Any] | None] | None) -> None:
        self._format = answer_format
        self._usage_now = usage_now
        self._frames: dict[int, Frame | None] = {}
        self._is_framed = not answer_format.tells_tokens

    def encode(self, chunk: dict[str, Any] | None) -> bytes:
        """Empty for None."""
        if chunk is None:
            return b""
        if self._usage_now is not None:
            chunk["usage"] = self._usage_now()
        return encode_event(chunk)

    def delta(self, index: int, delta: TextDelta) -> bytes:
        """The event for new text or tokens; empty if there is nothing to tell."""
        frame = self._frame(index) if self._is_framed else None
        if frame is None:
            return self.encode(self._format.delta(index, delta))
        return frame[0] + orjson.dumps(delta.text) + frame[1] if delta.text else b""

    def _frame(self, index: int) -> Frame | None:
        if index not in self._frames:
            self._frames[index] = self._make_frame(index)
        return self._frames[index]

    def _make_frame(self, index: int) -> Frame | None:
        """None where usage differs from chunk to chunk, or the mark occurs in something else that a client sent."""
        if self._usage_now is not None and self._usage_now() is not None:
            return None
        marked = TextDelta(prompt_index=0, sample_index=0, text=_MARK, tokens=(), text_offsets=())
        parts = self.encode(self._format.delta(index, marked)).split(_ENCODED_MARK)
        return (parts[0], parts[1]) if len(parts) == 2 else None
