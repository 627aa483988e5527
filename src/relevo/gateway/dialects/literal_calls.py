"""Calls written as code: `[f(a=1)]` and its relatives, and Gemma's `call:f{a:1}`. One parser, the families are data.

Where nothing but the code itself marks a call, it is one only at the start of an answer and for a tool that there is;
behind a mark of the family's own any name is a call. Source of the forms: the families' published chat templates.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from relevo.gateway.dialects.argument_types import ArgumentTypes
from relevo.gateway.dialects.call_parts import CallParts
from relevo.gateway.dialects.formats import CallShape
from relevo.gateway.dialects.literal_arguments import PYTHON, Dialect, LiteralArguments
from relevo.gateway.dialects.patterns import BLANKS, Atom, Pattern, Run
from relevo.gateway.text.output_parser import ParserInput
from relevo.gateway.text.parts import Part

NAME = Run(r"(?P<name>(?:[^\W\d][\w.\-/]{0,127}|))")


@dataclass(frozen=True, kw_only=True)
class CodeFormat:
    """Implements dialects.formats.ToolFormat."""

    name: str
    marks: Sequence[Sequence[Atom]]  # each begins calls, wherever it stands
    bare: Sequence[Sequence[Atom]] = ()  # each begins calls at the start of an answer, if the tool is known
    marks_know_names: bool = False  # also behind a mark, only a tool that there is may be called
    call: Sequence[Atom]  # with NAME, up to the bracket that opens its arguments
    before_next: Sequence[Atom] = ()  # before a call that follows another
    ends: Sequence[str]  # behind calls
    dialect: Dialect = PYTHON
    shape: CallShape
    markup: Sequence[str] = ()
    signs: Sequence[Sequence[str]]  # any of these, all of it, is in a template of the family

    def recognises(self, template: str) -> bool:
        return any(all(sign in template for sign in signs) for signs in self.signs)

    def parser(self, asked: ParserInput) -> CodeCalls:
        return CodeCalls(self, asked)

    @cached_property
    def marked_call(self) -> Pattern:
        return Pattern(*([*mark, BLANKS, *self.call] for mark in self.marks))

    @cached_property
    def bare_call(self) -> Pattern:
        return Pattern(*([*mark, BLANKS, *self.call] for mark in self.bare))

    @cached_property
    def next_call(self) -> Pattern:
        return Pattern([*self.before_next, *self.call])

    @cached_property
    def end(self) -> Pattern:
        return Pattern(*([end] for end in self.ends))

    @cached_property
    def first_chars(self) -> re.Pattern[str]:
        return re.compile("|".join({re.escape(str(mark[0])[0]) for mark in self.marks}))


class CodeCalls:
    """Parses one choice. Implements dialects.formats.ToolCallParser."""

    def __init__(self, style: CodeFormat, asked: ParserInput) -> None:
        self._style = style
        self._types = ArgumentTypes(asked.tools)
        self._out = CallParts(asked)
        self._text = ""
        self._is_over = False
        self._is_at_start = True  # of the answer, or right behind calls
        self._is_list_open = False  # further calls may follow as they are
        self._arguments: LiteralArguments | None = None

    @property
    def num_closed_calls(self) -> int:
        return self._out.num_closed_calls

    @property
    def is_in_call(self) -> bool:
        return self._out.is_in_call

    def feed(self, text: str) -> Sequence[Part]:
        self._text += text
        self._read()
        return self._out.take()

    def flush(self, *, is_cut: bool) -> Sequence[Part]:
        self._is_over = True
        self._read()
        if self._arguments is not None:
            self._arguments.flush(is_cut=is_cut)
            if self._arguments.is_closed:
                self._out.close()
            self._out.text(self._arguments.stray)
        self._out.end()
        return self._out.take()

    def _read(self) -> None:
        while self._in_arguments() if self._arguments is not None else self._in_text():
            pass

    def _in_arguments(self) -> bool:
        arguments = self._arguments
        assert arguments is not None, "only within a call"
        self._text = arguments.feed(self._text)
        if not arguments.is_closed:
            return False
        self._out.close()
        if arguments.stray:
            self._out.text(arguments.stray)
            self._out.mark()
        self._arguments = None
        return True

    def _in_text(self) -> bool:
        """Until a call begins. Says whether one did."""
        return (self._between() and self._outside()) or self._arguments is not None

    def _between(self) -> bool:
        """Behind a call: the next one, or the end of all. Says whether what follows is to be read as text."""
        style = self._style
        while self._is_list_open or (self._is_at_start and self._out.num_calls):
            text = self._text.lstrip(" \t\r\n,;" if self._is_list_open else " \t\r\n")
            if (found := style.end.match(text, 0)) is not None:
                self._text, self._is_list_open = text[found.end() :], False
                self._out.mark()
                continue
            if self._is_list_open and (found := style.next_call.match(text, 0)) is not None and found["name"]:
                self._text = text[found.end() :]
                self._open(found["name"])
                return False
            if self._is_over:
                self._text = "" if style.end.may_match(text, 0) else self._text  # the beginning of an end is markup
            elif style.end.may_match(text, 0) or (self._is_list_open and style.next_call.may_match(text, 0)):
                return False
            break
        return True

    def _outside(self) -> bool:
        """Text, until calls begin. Says whether they did."""
        text = self._text
        start = len(text) - len(text.lstrip()) if self._is_at_start else -1
        places = {found.start() for found in self._style.first_chars.finditer(text)}
        for at in sorted(places | {start} if 0 <= start < len(text) else places):
            if self._begins(text, at, is_start=at == start):
                return True
            if not self._is_over and self._may_begin(text, at, is_start=at == start):
                self._tell(text[:at])
                self._text = text[at:]
                return False
        self._tell(text)
        self._text = ""
        return False

    def _begins(self, text: str, at: int, *, is_start: bool) -> bool:
        style = self._style
        found = style.marked_call.match(text, at)
        needs_known = found is None or style.marks_know_names
        if found is None and is_start:
            found = style.bare_call.match(text, at)
        if found is None or not found["name"] or (needs_known and not self._types.has(found["name"])):
            return False
        self._tell(text[:at])
        self._text = text[found.end() :]
        self._open(found["name"])
        return True

    def _may_begin(self, text: str, at: int, *, is_start: bool) -> bool:
        style = self._style
        return style.marked_call.may_match(text, at) or (is_start and style.bare_call.may_match(text, at))

    def _tell(self, text: str) -> None:
        if text and not text.isspace():
            self._is_at_start = self._is_list_open = False
        self._out.text(text)

    def _open(self, name: str) -> None:
        self._out.open(name)
        self._is_at_start = self._is_list_open = True
        self._arguments = LiteralArguments(self._style.dialect, self._types.names(name), self._out.arguments)
