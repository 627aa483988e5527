"""The parts that a parser of calls gives: texts and calls in order, with what the seam promises of them.

Blanks beside a call are markup and are left out; blanks of an answer without calls are text. Does not know how any
family writes its calls.
"""

from __future__ import annotations

from relevo.gateway.text.output_parser import ParserInput
from relevo.gateway.text.parts import Part, ReasoningPart, TextPart, ToolCallPart


class CallParts:
    """Of one choice."""

    def __init__(self, asked: ParserInput) -> None:
        self._draw_id = asked.draw_id
        self._parts: list[Part] = []
        self._blanks = ""  # at the start of a run of text: markup, if a call follows
        self._has_text = False  # this run
        self.num_calls = 0
        self.num_closed_calls = 0

    @property
    def is_in_call(self) -> bool:
        return self.num_calls > self.num_closed_calls

    def text(self, text: str) -> None:
        if not self._has_text:
            if not text or text.isspace():
                self._blanks += text
                return
            text, self._blanks, self._has_text = self._blanks + text, "", True
        if text:
            self._add(TextPart(text))

    def reasoning(self, text: str) -> None:
        if text:
            self._add(ReasoningPart(text))

    def mark(self) -> None:
        """Markup stands here: blanks before it are its own."""
        self._blanks, self._has_text = "", False

    def open(self, name: str) -> None:
        self.mark()
        self._parts.append(ToolCallPart(self.num_calls, "", f"call_{self._draw_id()}", name))
        self.num_calls += 1

    def arguments(self, text: str) -> None:
        """What follows of the JSON text of the open call."""
        if text:
            self._add(ToolCallPart(self.num_calls - 1, text))

    def close(self) -> None:
        self.num_closed_calls = self.num_calls

    def end(self) -> None:
        """The output has ended: blanks that no call claims are text."""
        if self._blanks and not self.num_calls:
            self._add(TextPart(self._blanks))
        self._blanks = ""

    def take(self) -> tuple[Part, ...]:
        """What has come since the last time."""
        parts, self._parts = tuple(self._parts), []
        return parts

    def _add(self, part: Part) -> None:
        last = self._parts[-1] if self._parts else None
        if isinstance(part, TextPart) and isinstance(last, TextPart):
            self._parts[-1] = TextPart(last.text + part.text)
        elif isinstance(part, ReasoningPart) and isinstance(last, ReasoningPart):
            self._parts[-1] = ReasoningPart(last.text + part.text)
        elif isinstance(part, ToolCallPart) and isinstance(last, ToolCallPart) and last.index == part.index:
            self._parts[-1] = ToolCallPart(last.index, last.arguments + part.arguments, last.id, last.name)
        else:
            self._parts.append(part)
