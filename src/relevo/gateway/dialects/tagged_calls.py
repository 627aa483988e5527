"""Calls whose arguments stand between tags, each as bare text: one parser for all families that write so.

A closing tag within a value is data: it counts only where the tags that may follow it do follow, and is held back until
that is decided. Values whose schema says string are told as they come, others when they are whole. Which tags a family
has is data too (`tagged_formats`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from re import Match
from typing import Literal

from relevo.gateway.dialects.argument_types import ArgumentType, ArgumentTypes, json_text
from relevo.gateway.dialects.call_parts import CallParts
from relevo.gateway.dialects.patterns import BLANKS, Atom, Pattern, Run
from relevo.gateway.text.output_parser import ParserInput
from relevo.gateway.text.parts import Part

NAME = Run(r"(?P<name>[^<>\"'\s{}\[\]()]{0,128})")
KEY = Run(r"(?P<key>[^<>\n\"]{0,256})")


@dataclass(frozen=True, kw_only=True)
class Tags:
    """What a family writes around calls, names and values. The first character of each is `<`."""

    begin: str = ""  # before one call or several; empty: none
    end: str = ""
    call: Sequence[Atom]  # with NAME
    after_name: Sequence[Sequence[Atom]] = ((),)  # that must follow, before a name is certain
    call_end: Sequence[Atom]
    parameters: Sequence[Sequence[Atom]]  # with KEY; the ways to begin one
    value_end: str
    line_ends: Literal["kept", "paired", "dropped"] = "kept"  # beside the tags of values; paired: with one at the start
    reads: Callable[[ArgumentType, Match[str], str], str] = lambda kind, tag, written: kind.json_of(written)
    streams: Callable[[ArgumentType, Match[str]], bool] = lambda kind, tag: kind.is_text

    @cached_property
    def framed_call(self) -> Pattern:
        return self._calls(self.begin, BLANKS)

    @cached_property
    def bare_call(self) -> Pattern:
        return self._calls()

    def _calls(self, *before: Atom) -> Pattern:
        return Pattern(*([*before, *self.call, Run("(?P<rest>)"), *after] for after in self.after_name))

    @cached_property
    def parameter(self) -> Pattern:
        return Pattern(*self.parameters)

    @cached_property
    def frame_end(self) -> Pattern:
        return Pattern([self.end]) if self.end else Pattern()

    @cached_property
    def call_close(self) -> Pattern:
        return Pattern(self.call_end)

    @cached_property
    def lost_call_close(self) -> Pattern:
        """What says within a frame that a call has ended without its own closing tag."""
        return Pattern(*([tag] for tag in (self.end, self.begin) if tag))

    def value_ends(self, *, is_framed: bool) -> Pattern:
        return self._framed_value_ends if is_framed else self._bare_value_ends

    @cached_property
    def _framed_value_ends(self) -> Pattern:
        """Calls within a frame end with it, or another follows."""
        after_call: list[list[Atom]] = [[*self.call_end, BLANKS, tag] for tag in (self.end, self.begin, self.call[0])]
        return self._value_ends(*after_call, [self.end])

    @cached_property
    def _bare_value_ends(self) -> Pattern:
        return self._value_ends(self.call_end)

    @cached_property
    def answer_end(self) -> Pattern:
        """Ends a value that lacks its own closing tag, if nothing follows."""
        return Pattern([*self.call_end, BLANKS, self.end, BLANKS, Run(r"(?P<over>\Z)")])

    def _value_ends(self, *follow: Sequence[Atom]) -> Pattern:
        return Pattern(*([self.value_end, BLANKS, *after] for after in (*self.parameters, *follow)))


class TaggedCalls:
    """Parses one choice. Implements dialects.formats.ToolCallParser."""

    def __init__(self, tags: Tags, asked: ParserInput) -> None:
        self._tags = tags
        self._types = ArgumentTypes(asked.tools)
        self._out = CallParts(asked)
        self._buffer = ""
        self._is_framed = False
        self._is_over = False  # nothing follows: what is undecided is decided now
        self._is_after_call = False
        self._name = ""
        self._num_arguments = 0
        self._is_key_cut = False
        self._stray = ""  # text within a call that belongs to no argument: told after it
        self._step = self._text
        self._tag: Match[str] | None = None  # that began the value
        self._kind = ArgumentType(frozenset())
        self._value: list[str] = []
        self._is_streamed = False
        self._is_at_start = self._is_on_own_lines = False  # of the value: its line ends are the tags'
        self._line_end = ""  # the last character of the value so far, if it may be the tag's

    @property
    def num_closed_calls(self) -> int:
        return self._out.num_closed_calls

    @property
    def is_in_call(self) -> bool:
        return self._out.is_in_call

    def feed(self, text: str) -> Sequence[Part]:
        self._buffer += text
        while self._step():
            pass
        return self._out.take()

    def flush(self, *, is_cut: bool) -> Sequence[Part]:
        self._is_over = True
        while self._step():
            pass
        if self._tag is not None:
            self._tell_cut_value()
        elif self._out.is_in_call and not is_cut and not self._is_key_cut:
            self._close_call()  # only its closing tags are missing
        self._out.text(self._stray)
        self._out.end()
        return self._out.take()

    # ---- steps: each takes something off the buffer and says whether to go on ----------------------------------------

    def _text(self) -> bool:
        """Until a call begins."""
        text, begin = self._buffer, 0
        while (at := text.find("<", begin)) >= 0:
            self._tell_text(text[begin:at])
            is_frame_end = self._is_after_call and self._tags.frame_end.match(text, at) is not None
            if is_frame_end:
                self._buffer = text[at + len(self._tags.end) :]
                self._is_framed = self._is_after_call = False
                self._out.mark()
                return True
            if self._begins_call(text, at):
                return True
            if self._may_begin(text, at):
                self._buffer = text[at:]
                return False
            self._tell_text("<")
            begin = at + 1
        self._tell_text(text[begin:])
        self._buffer = ""
        return False

    def _begins_call(self, text: str, at: int) -> bool:
        """A call outside of its family's frame must be of a tool that there is."""
        tags = self._tags
        found = tags.framed_call.match(text, at) if tags.begin else None
        is_framed = self._is_framed or found is not None
        if found is None:
            found = tags.bare_call.match(text, at)
        if found is None or not found["name"] or not (is_framed or not tags.begin or self._types.has(found["name"])):
            return False
        self._buffer = text[found.end("rest") :]
        self._open_call(found["name"], is_framed=is_framed)
        return True

    def _may_begin(self, text: str, at: int) -> bool:
        tags = self._tags
        if self._is_over:
            return self._is_after_call and len(text) > at + 1 and tags.frame_end.may_match(text, at)  # markup
        return (
            tags.bare_call.may_match(text, at)
            or (bool(tags.begin) and tags.framed_call.may_match(text, at))
            or (self._is_after_call and tags.frame_end.may_match(text, at))
        )

    def _tell_text(self, text: str) -> None:
        if text and not text.isspace():
            self._is_after_call = self._is_framed = False
        self._out.text(text)

    def _arguments(self) -> bool:
        """Until a value begins, or the call ends."""
        tags = self._tags
        text = self._buffer = self._buffer.lstrip()
        if not text:
            return False
        if (found := tags.parameter.match(text, 0)) is not None:
            self._buffer = text[found.end() :]
            self._open_value(found)
            return True
        found = tags.call_close.match(text, 0)
        if found is not None or (self._is_framed and tags.lost_call_close.match(text, 0) is not None):
            self._buffer = text if found is None else text[found.end() :]
            self._close_call()
            return True
        patterns = (tags.parameter, tags.call_close, *([tags.lost_call_close] if self._is_framed else []))
        if any(pattern.may_match(text, 0) for pattern in patterns):
            if self._is_over:
                self._tell_cut_key()
            return False
        self._stray += text[0]
        self._buffer = text[1:]
        self._step = self._stray_text
        return True

    def _stray_text(self) -> bool:
        """Until the next tag of a call."""
        before, tag, after = self._buffer.partition("<")
        self._stray += before
        self._buffer = tag + after
        self._step = self._arguments if tag else self._stray_text
        return bool(tag)

    def _value_text(self) -> bool:
        """Until the value's closing tag."""
        tags, text, at = self._tags, self._buffer, 0
        ends = tags.value_ends(is_framed=self._is_framed)
        while (at := text.find("<", at)) >= 0:
            is_end = ends.match(text, at) is not None
            if not is_end and ends.may_match(text, at):
                if not self._is_over:
                    self._take_value(text[:at])
                    self._buffer = text[at:]
                    return False
                is_end = text.startswith(tags.value_end, at)
            elif not is_end and tags.answer_end.may_match(text, at):
                if not self._is_over:
                    self._take_value(text[:at])
                    self._buffer = text[at:]
                    return False
                is_end = tags.answer_end.match(text, at) is not None
            if is_end:
                self._take_value(text[:at])
                self._buffer = text[at:].removeprefix(tags.value_end)
                self._close_value()
                return True
            at += 1
        self._take_value(text)
        self._buffer = ""
        return False

    # ---- what they do ------------------------------------------------------------------------------------------------

    def _open_call(self, name: str, *, is_framed: bool) -> None:
        self._out.open(name)
        self._is_framed = is_framed
        self._name, self._num_arguments, self._stray = name, 0, ""
        self._step = self._arguments

    def _close_call(self) -> None:
        self._out.arguments("}" if self._num_arguments else "{}")
        self._out.close()
        self._out.text(self._stray)
        self._out.mark()
        self._stray = ""
        self._is_after_call = True
        self._step = self._text

    def _open_value(self, tag: Match[str]) -> None:
        key = tag["key"].strip()
        self._tag, self._kind, self._value = tag, self._types.of(self._name, key), []
        self._is_streamed = self._tags.streams(self._kind, tag)
        self._line_end = ""
        self._out.arguments(("," if self._num_arguments else "{") + json_text(key) + ":")
        self._out.arguments('"' if self._is_streamed else "")
        self._num_arguments, self._is_at_start = self._num_arguments + 1, True
        self._step = self._value_text

    def _take_value(self, text: str) -> None:
        if not text:
            return
        if self._is_at_start:
            self._is_on_own_lines = self._tags.line_ends == "dropped" or (
                self._tags.line_ends == "paired" and text[0] == "\n"
            )
        if self._is_on_own_lines:
            if self._is_at_start and text[0] == "\n":
                text = text[1:]
            text = self._line_end + text
            self._line_end = "\n" if text.endswith("\n") else ""
            text = text.removesuffix("\n")
        self._is_at_start = False
        if self._is_streamed:
            self._out.arguments(json_text(text)[1:-1])
        else:
            self._value.append(text)

    def _close_value(self) -> None:
        assert self._tag is not None, "a value has a tag"
        written = '"' if self._is_streamed else self._tags.reads(self._kind, self._tag, "".join(self._value))
        self._out.arguments(written)
        self._tag = None
        self._step = self._arguments

    def _tell_cut_key(self) -> None:
        begun = next((str(each[0]) for each in self._tags.parameters if self._buffer.startswith(str(each[0]))), None)
        if begun is not None:
            key = self._buffer.removeprefix(begun).partition("<")[0].partition('"')[0]
            self._out.arguments(("," if self._num_arguments else "{") + json_text(key)[:-1])
        self._is_key_cut = begun is not None
        self._buffer = ""

    def _tell_cut_value(self) -> None:
        """As far as it came."""
        if self._is_streamed:
            self._out.arguments(json_text(self._line_end)[1:-1])
        else:
            self._out.arguments("".join(self._value) + self._line_end)
        self._tag = None
