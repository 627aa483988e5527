"""A response as events, and whole. Source: OpenAI API reference, "Responses" and its streaming events.

Owns the order and the numbers of events: created, in progress, items, and one last event that says how it ended. Events
that could not leave take no number, so the numbers of those that do have no gap. What is the same in all deltas of a
text is encoded once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from relevo.core.baton import SampledToken
from relevo.core.errors import RelevoError
from relevo.gateway.generation.finished_choice import FinishedChoice
from relevo.gateway.generation.reply_writer import Usage
from relevo.gateway.http.sse import KEEPALIVE_COMMENT
from relevo.gateway.responses.output_items import Event, OutputItems
from relevo.gateway.responses.shape import ResponseShape
from relevo.gateway.text.parts import Delta, Part, TextPart

Entries = list[dict[str, Any]]  # log probabilities, one for each token


@dataclass(slots=True, kw_only=True)
class ResponseWriter:
    """The `ReplyWriter` of one response, which has one choice. `logprobs_of`: None: none are asked for."""

    shape: ResponseShape
    items: OutputItems
    usage: Callable[[], Usage]
    now_s: Callable[[], int]  # Unix seconds
    logprobs_of: Callable[[Sequence[SampledToken]], Entries] | None = None
    keepalive: bytes = KEEPALIVE_COMMENT
    ended: dict[str, Any] | None = None  # the response, once the answer is complete
    _num_events: int = 0
    _has_begun: bool = False
    _is_cut: bool = False
    _frame: tuple[tuple[str, int, int], bytes] | None = None  # of which text, and what its deltas begin with
    _texts: TextTokens = field(default_factory=lambda: TextTokens())

    @property
    def response_id(self) -> str:
        return self.shape.id

    # ---- streamed ----------------------------------------------------------------------------------------------------

    def begin(self) -> Iterator[bytes]:
        self._has_begun = True
        response = {"response": self.shape.in_progress()}
        return iter((self._encoded([("created", response), ("in_progress", response)]),))  # numbered before deltas are

    def delta(self, delta: Delta) -> bytes:
        parts = delta.parts
        if self.logprobs_of is None and len(parts) == 1 and type(parts[0]) is TextPart and parts[0].text:
            text = self.items.open_text
            if text is not None:
                return self._text_delta(text, parts[0].text)
        return self._encoded(self._events(parts, delta.tokens))

    def finish_choice(self, delta: Delta) -> bytes:
        self._is_cut = delta.finish_reason == "length"
        return b""  # all that follows is `end`

    def end(self) -> bytes:
        """The closing events of the last item, and the response. They are numbered, and not counted yet: an error may
        come in their place."""
        num_before = self._num_events
        events = self.items.end(is_cut=self._is_cut)
        last = self._complete(self._is_cut)
        data = self._encoded([*events, (last["status"], {"response": last})])
        self._num_events = num_before
        return data

    def error(self, error: RelevoError) -> bytes:
        opening = b"" if self._has_begun else b"".join(self.begin())
        failed = self.shape.failed(self.items.now(), self.usage(), error)
        return opening + self._encoded([("failed", {"response": failed})])

    # ---- whole -------------------------------------------------------------------------------------------------------

    def logprobs(self, delta: Delta) -> Mapping[str, Any] | None:
        """By message, of which there may be several."""
        if self.logprobs_of is None:
            return None
        tokens, _ = self._texts.take(delta.parts, delta.tokens)
        return {str(self._texts.num_messages): self.logprobs_of(tokens)} if tokens else {}

    def whole(self, choices: Sequence[FinishedChoice]) -> bytes:
        (choice,) = choices
        logprobs, texts = choice.logprobs.whole({}), TextTokens()
        for part in choice.parts:
            texts.take((part,), ())
            is_text = isinstance(part, TextPart)
            self.items.add(part, logprobs.get(str(texts.num_messages), ()) if is_text else ())
        is_cut = choice.finish_reason == "length"
        self.items.end(is_cut=is_cut)
        return orjson.dumps(self._complete(is_cut))

    # ------------------------------------------------------------------------------------------------------------------

    def _complete(self, is_cut: bool) -> dict[str, Any]:
        self.ended = self.shape.ended(self.items.finished, self.usage(), self.now_s(), is_cut=is_cut)
        return self.ended

    def _events(self, parts: Sequence[Part], tokens: Sequence[SampledToken]) -> Iterator[Event]:
        shown, place = self._texts.take(parts, tokens) if self.logprobs_of is not None else ((), -1)
        for index, part in enumerate(parts):
            is_here = index == place and self.logprobs_of is not None
            yield from self.items.add(part, self.logprobs_of(shown) if is_here and self.logprobs_of else ())

    def _encoded(self, events: Iterable[Event]) -> bytes:
        data = bytearray()
        for name, members in events:
            kind = f"response.{name}"
            event = {"type": kind, **members, "sequence_number": self._num_events}
            self._num_events += 1
            data += b"event: %b\ndata: %b\n\n" % (kind.encode(), orjson.dumps(event))
        return bytes(data)

    def _text_delta(self, place: tuple[str, int, int], text: str) -> bytes:
        if self._frame is None or self._frame[0] != place:
            item_id, output_index, content_index = place
            members = {
                "type": "response.output_text.delta",
                "output_index": output_index,
                "item_id": item_id,
                "content_index": content_index,
                "logprobs": [],
            }
            start = b"event: response.output_text.delta\ndata: " + orjson.dumps(members)[:-1] + b',"sequence_number":'
            self._frame = (place, start)
        self.items.take_text(text)
        data = b'%b%d,"delta":%b}\n\n' % (self._frame[1], self._num_events, orjson.dumps(text))
        self._num_events += 1
        return data


@dataclass(slots=True)
class TextTokens:
    """Which tokens a text shows: those of its deltas, and those before that waited for a whole character. Tokens of
    reasoning and of calls are shown with no text."""

    num_messages: int = 0
    _is_in_text: bool = False
    _waiting: list[SampledToken] = field(default_factory=list)

    def take(self, parts: Sequence[Part], tokens: Sequence[SampledToken]) -> tuple[Sequence[SampledToken], int]:
        """Those that a text shows now, and which part it is."""
        self._waiting += tokens
        place = -1
        for index, part in enumerate(parts):
            is_text = isinstance(part, TextPart)
            self.num_messages += is_text and not self._is_in_text
            self._is_in_text = is_text
            place = index if is_text and place < 0 else place
        if not parts:
            return (), -1
        shown = self._waiting if place >= 0 else []
        self._waiting = []
        return shown, place
