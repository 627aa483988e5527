"""One `OutputParser` from how a model marks its reasoning and how it writes its calls.

Owns the places where reasoning begins and ends, and the blanks around marks; calls are the `ToolCallParser`'s. The
rules, the same streamed and whole, however the text is cut (docs/guides/tools.md, "How calls are read"):

- The answer begins in a thought if its prompt ends with the mark that opens one. A thought may also begin where an
  answer does, behind another thought, and behind a call; elsewhere the mark is text.
- A thought that no mark ended is reasoning to its end, whether a limit or the model ended it. From a call's mark on,
  text in a thought is held: it is reasoning if the thought's end follows or a limit cuts it, and if the model ends
  there, it is the calls that are whole in it.
- Blanks beside marks are the marks', but for the indentation of a line that follows them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from relevo.core.baton import SampledToken
from relevo.gateway.dialects.blank_runs import BlankRuns
from relevo.gateway.dialects.formats import ReasoningFormat, ToolCallParser, ToolFormat
from relevo.gateway.dialects.harmony import Harmony
from relevo.gateway.dialects.harmony_formats import HARMONY_REASONING, HARMONY_TOOLS
from relevo.gateway.dialects.marks import BLANKS, Marks, after_blanks, without_lead
from relevo.gateway.dialects.reasoning_tokens import ReasoningTokens
from relevo.gateway.text.output_parser import OutputParser, ParserInput, PlainText
from relevo.gateway.text.parts import Part, ReasoningPart, TextPart, ToolCallPart


@dataclass(frozen=True, slots=True)
class ComposedParsers:
    """A model's `ParserFactory`. Without tools that may be called, calls are text. Harmony has a parser of its own."""

    reasoning: ReasoningFormat | None
    tools: ToolFormat | None

    def __call__(self, asked: ParserInput) -> OutputParser:
        tells_reasoning, reads_calls = self.reasoning is HARMONY_REASONING, self.tools is HARMONY_TOOLS
        if tells_reasoning or reads_calls:
            return Harmony(asked, tells_reasoning=tells_reasoning, reads_calls=reads_calls)
        calls = self.tools.parser(asked) if self.tools is not None and asked.tools else None
        if self.reasoning is None:
            return PlainText() if calls is None else Composed(asked, None, calls, ())
        markup = self.tools.markup if self.tools is not None and calls is not None else ()
        return Composed(asked, self.reasoning, calls, markup)


class Composed:
    def __init__(
        self,
        asked: ParserInput,
        reasoning: ReasoningFormat | None,
        calls: ToolCallParser | None,
        call_markup: Sequence[str],
    ) -> None:
        """call_markup: what may begin a call within a thought."""
        self._calls = calls
        self._call_markup = tuple(call_markup)
        self._start, self._end = (reasoning.start, reasoning.end) if reasoning is not None else ("", "")
        self._start_marks = Marks((self._start,))
        self._in_thought = Marks((self._end, *call_markup))
        self._rest = ""  # not decided yet
        self._blank_runs = BlankRuns()
        self._fed_tail = ""  # the last of what the calls' parser has read
        self._read: Callable[[], bool] = self._content
        if reasoning is not None:
            self._read = self._first_of(reasoning, asked)
        self._shown = _Shown(is_parallel=asked.is_parallel, holds_blanks=calls is not None)
        self._tokens = ReasoningTokens()
        self._num_searched = 0  # of `_rest`, for a thought's end
        self.is_broken_off = False

    @property
    def num_reasoning_tokens(self) -> int:
        return self._tokens.count

    @property
    def is_complete(self) -> bool:
        return self._shown.is_complete

    def feed(self, text: str, tokens: Sequence[SampledToken]) -> tuple[Part, ...]:
        read = self._blank_runs.take(text)
        is_held = self._blank_runs.is_holding
        if not (self._rest or is_held) and read is text and self._read == self._content and self._is_plain(text):
            # nearly every token's way
            self._tokens.skip(len(text))
            self._to_calls(text)
            return self._shown.take()
        self._tokens.fed(len(tokens), len(text))
        if not is_held:
            self._read_on(read)
        return self._shown.take()

    def _read_on(self, text: str) -> None:
        self._rest += text
        while self._read():
            pass

    def _is_plain(self, text: str) -> bool:
        """No thought can begin in it."""
        return self._calls is None or not self._start or self._start[0] not in text

    def flush(self, *, is_cut: bool) -> tuple[Part, ...]:
        if self._blank_runs.is_holding:
            self._read_on(self._blank_runs.rest())
        is_thought = self._read in (self._thought, self._thought_begins, self._held_calls)
        if self._read == self._held_calls and not is_cut and self._called():
            return self._shown.take()
        rest = self._take(len(self._rest), is_thought=is_thought)
        if is_thought:
            self._shown.thought(rest)
        else:
            self._to_calls(rest)
            if self._calls is not None:
                self._shown.content(self._calls.flush(is_cut=is_cut))
                self.is_broken_off = self._calls.is_in_call and not self._shown.is_complete
            self._shown.end()
        return self._shown.take()

    def _first_of(self, reasoning: ReasoningFormat, asked: ParserInput) -> Callable[[], bool]:
        """Where an answer begins: in a thought, perhaps before one, or within the text that it goes on with."""
        continued = asked.continued_text
        if continued.strip(BLANKS):
            return self._thought if continued.rfind(self._start) > continued.rfind(self._end) else self._content
        return self._thought_begins if reasoning.is_open_after(asked.prompt_tail) else self._may_think

    # ---- each reads on as far as it can, and says whether the next may -----------------------------------------------

    def _may_think(self) -> bool:
        """At the beginning of an answer, or behind a thought."""
        place = after_blanks(self._rest)
        if self._rest.startswith(self._start, place):
            return self._enter_thought(place)
        if place == len(self._rest) or self._start_marks.begins_at(self._rest, place):
            return False
        return self._go(self._content)

    def _thought_begins(self) -> bool:
        """A model may repeat the mark that its template wrote."""
        place = after_blanks(self._rest)
        if self._rest.startswith(self._start, place):
            self._take(place + len(self._start), is_thought=True)
            return True
        if place == len(self._rest) or self._start_marks.begins_at(self._rest, place):
            return False
        self._take(len(self._rest) - len(without_lead(self._rest)), is_thought=True)
        return self._go(self._thought)

    def _thought(self) -> bool:
        place, mark = self._in_thought.find(self._rest)
        if mark == self._end:
            return self._leave_thought(place)
        end = place if place >= 0 else self._in_thought.first_open(self._rest)
        self._shown.thought(self._take(len(self._rest[:end].rstrip(BLANKS)), is_thought=True))
        self._num_searched = 0
        return place >= 0 and self._go(self._held_calls)

    def _held_calls(self) -> bool:
        place = self._rest.find(self._end, self._num_searched)
        if place < 0:
            self._num_searched = max(0, len(self._rest) - len(self._end) + 1)
            return False
        return self._leave_thought(place)

    def _content(self) -> bool:
        place = self._rest.find(self._start) if self._start else -1
        if place < 0:
            self._to_calls(self._take(self._start_marks.first_open(self._rest), is_thought=False))
            return False
        self._to_calls(self._take(place, is_thought=False))
        if self._is_behind_call():
            return self._enter_thought(0)
        self._to_calls(self._take(len(self._start), is_thought=False))
        return True

    # ---- between them ------------------------------------------------------------------------------------------------

    def _enter_thought(self, place: int) -> bool:
        self._shown.mark()
        self._take(place + len(self._start), is_thought=True)
        return self._go(self._thought_begins)

    def _leave_thought(self, place: int) -> bool:
        thought = self._take(place + len(self._end), is_thought=True)
        self._shown.thought(thought[:place].rstrip(BLANKS))
        self._shown.mark()
        return self._go(self._may_think)

    def _take(self, num_chars: int, *, is_thought: bool) -> str:
        """What is decided now."""
        text, self._rest = self._rest[:num_chars], self._rest[num_chars:]
        self._tokens.decided(num_chars, is_reasoning=is_thought)
        return text

    def _go(self, then: Callable[[], bool]) -> bool:
        self._read = then
        return True

    def _is_behind_call(self) -> bool:
        """A call came out and nothing but blanks and marks since."""
        calls = self._calls
        if calls is None or calls.is_in_call or not self._shown.is_behind_call:
            return False
        before = self._fed_tail.rstrip(BLANKS)
        return before[-1:] in ("}", "]", ")") or any(before.endswith(mark) for mark in self._call_markup)

    def _to_calls(self, text: str) -> None:
        if self._calls is None:
            self._shown.content((TextPart(text),) if text else ())
        elif text:
            self._fed_tail = text if len(text) > _TAIL_CHARS else (self._fed_tail + text)[-_TAIL_CHARS:]
            self._shown.content(self._calls.feed(text))
            if self._shown.is_first_only:
                self._shown.is_complete = self._calls.num_closed_calls > 0

    def _called(self) -> bool:
        """The calls in a thought that the model ended behind them. False: none is whole, the thought goes on."""
        calls = self._calls
        assert calls is not None, "their marks are looked for"
        num_before = calls.num_closed_calls
        parts = [*calls.feed(self._rest), *calls.flush(is_cut=False)]
        if calls.num_closed_calls == num_before:
            return False
        self._take(len(self._rest), is_thought=False)
        for part in parts:
            if isinstance(part, TextPart):
                self._shown.thought(part.text.strip(BLANKS))
            else:
                self._shown.content((part,))
        self.is_broken_off = calls.is_in_call and not self._shown.is_first_only
        return True


_TAIL_CHARS = 64  # at least as long as any mark and the blanks behind it; arbitrary


class _Shown:
    """The parts that may be shown, without the blanks beside marks, and none behind the only call that is wanted."""

    def __init__(self, *, is_parallel: bool, holds_blanks: bool) -> None:
        self._parts: list[Part] = []
        self._is_lead = False  # behind a mark
        self._holds_blanks = holds_blanks
        self._blanks = ""  # behind text: they are a mark's if one follows
        self.is_first_only = not is_parallel
        self.is_behind_call = False
        self.is_complete = False

    def content(self, parts: Sequence[Part]) -> None:
        for part in parts:
            if isinstance(part, ToolCallPart):
                self._call(part)
            elif isinstance(part, TextPart):
                if not (self.is_first_only and self.is_behind_call):
                    self._text(part.text)
            else:
                self._parts.append(part)

    def thought(self, text: str) -> None:
        if text and not self.is_complete:
            self._parts.append(ReasoningPart(text))

    def mark(self) -> None:
        self._blanks, self._is_lead = "", True

    def end(self) -> None:
        """Of the output: blanks behind text are text."""
        if self._blanks and not self._is_lead:
            self._parts.append(TextPart(self._blanks))
        self._blanks = ""

    def take(self) -> tuple[Part, ...]:
        parts = self._parts
        if not parts:
            return ()
        self._parts = []
        return tuple(_joined(parts)) if len(parts) > 1 else tuple(parts)

    def _call(self, part: ToolCallPart) -> None:
        if self.is_first_only and part.index > 0:
            return
        self.mark()
        self.is_behind_call = True
        self._parts.append(part)

    def _text(self, text: str) -> None:
        text = self._blanks + text
        body = text.rstrip(BLANKS)
        if not body and (self._holds_blanks or self._is_lead):
            self._blanks = text
            return
        shown = body if self._holds_blanks else text
        self._blanks = text[len(shown) :]
        self._parts.append(TextPart(without_lead(shown) if self._is_lead else shown))
        self._is_lead = self.is_behind_call = False


def _joined(parts: Sequence[Part]) -> list[Part]:
    """A part that goes on in the next becomes one with it."""
    joined: list[Part] = []
    for part in parts:
        last = joined[-1] if joined else None
        if isinstance(part, ToolCallPart) and isinstance(last, ToolCallPart) and part.index == last.index:
            joined[-1] = ToolCallPart(last.index, last.arguments + part.arguments, last.id, last.name)
        elif isinstance(part, TextPart) and isinstance(last, TextPart):
            joined[-1] = TextPart(last.text + part.text)
        elif isinstance(part, ReasoningPart) and isinstance(last, ReasoningPart):
            joined[-1] = ReasoningPart(last.text + part.text)
        else:
            joined.append(part)
    return joined
