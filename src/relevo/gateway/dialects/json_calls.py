"""Calls whose arguments are JSON text: one parser for all families that differ in their marks alone.

A call comes out as soon as its name is known and its arguments are certain to be an object; from then on it is a call,
whatever follows, and its arguments are passed on as they are written. Before that, what turns out to be no call is the
text that it was, marks included. Source of the forms: the models' own chat templates and model cards.

Rules that no family changes: `parameters` is taken for `arguments`; null, nothing and an empty string are `{}`; text
that holds an object is that object; a list, a number or another string makes the whole call text, and so does an empty
name. A name that no tool has is passed on: the client answers it with an error.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from relevo.gateway.dialects.formats import CallShape
from relevo.gateway.dialects.json_values import ArgumentsText, CallObject
from relevo.gateway.dialects.marks import Marks, after_blanks
from relevo.gateway.text.output_parser import ParserInput
from relevo.gateway.text.parts import Part, TextPart, ToolCallPart

MAX_HEADER_CHARS = 256  # arbitrary: longer names are no names


def plain_id(asked: ParserInput, name: str, index: int) -> str:
    return f"call_{asked.draw_id()}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """The name of a call, where it stands before the arguments instead of in one object with them."""

    name: re.Pattern[str]  # of all between the opening mark and the end; its group is the name
    ends: tuple[str, ...]  # any of them


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonFormat:
    """A `ToolFormat`, as data."""

    name: str
    opens: tuple[str, ...]  # each begins a call, or several
    closes: tuple[str, ...] = ()  # each may follow a call, and belongs to it
    sections: tuple[str, ...] = ()  # each may stand before one of `opens`
    header: Header | None = None
    takes_objects: bool = True  # with name and arguments; also several, and several in a list
    is_bare: bool = False  # they may begin the content without a mark
    fences: tuple[str, ...] = ()  # of Markdown, that may stand before bare ones
    needs_known_name: bool = False  # and arguments, where no mark opens a call; anything else is text
    signs: tuple[str, ...] = ()  # a chat template has all of one of them: `a&b`
    unlike: tuple[str, ...] = ()  # and none of these
    shape: CallShape | None = None
    make_id: Callable[[ParserInput, str, int], str] = plain_id

    @property
    def markup(self) -> Sequence[str]:
        """Fences of Markdown are in every other text, too, and no tokens of their own."""
        ends = self.header.ends if self.header else ()
        texts = dict.fromkeys((*self.sections, *self.opens, *ends, *self.closes))
        return tuple(text for text in texts if not text.startswith("```"))

    def recognises(self, template: str) -> bool:
        return any(all(part in template for part in sign.split("&")) for sign in self.signs) and not any(
            text in template for text in self.unlike
        )

    def parser(self, asked: ParserInput) -> JsonCalls:
        return JsonCalls(self, asked)


class JsonCalls:
    """The `ToolCallParser` of a `JsonFormat`."""

    def __init__(self, style: JsonFormat, asked: ParserInput) -> None:
        self._style, self._asked = style, asked
        self._names = frozenset(str(tool["function"]["name"]) for tool in asked.tools)
        self._opens = Marks((*style.sections, *style.opens))
        self._closes, self._fences = Marks(style.closes), Marks(style.fences)
        self._stops = Marks((*self._opens.texts, *style.closes))
        self._header_ends = Marks((*style.header.ends, "{")) if style.header else Marks(())
        self._rest = ""  # not read yet
        self._raw = ""  # read since the opening mark, and neither call nor text yet
        self._read: Callable[[], bool] = self._begin if style.is_bare else self._content
        self._is_bare = style.is_bare  # no mark was seen
        self._object: CallObject | None = None
        self._arguments: ArgumentsText | None = None
        self._name = ""
        self._is_named = False  # its first part came out
        self._is_text = False  # it is an object that is no call
        self._num_calls = 0
        self._has_closed_mark = False
        self._parts: list[Part] = []
        self.num_closed_calls = 0
        self.is_in_call = False

    def feed(self, text: str) -> Sequence[Part]:
        if not self._rest and self._read == self._content and self._opens.cannot_begin_in(text):
            return (TextPart(text),) if text else ()
        self._rest += text
        while self._read():
            pass
        return self._take_parts()

    def flush(self, *, is_cut: bool) -> Sequence[Part]:
        """An unfinished call that did not come out is text; one that did keeps what there is of its arguments."""
        arguments = self._arguments
        if self._is_named and arguments is not None and not (arguments.is_closed or arguments.is_broken):
            self._show(arguments.take_rest() + self._rest)
        elif not (self._is_named and self._closes.begins_at(self._rest, after_blanks(self._rest))):
            self._text(self._raw + self._rest)
        self._raw = self._rest = ""
        return self._take_parts()

    # ---- each reads on as far as it can, and says whether the next may -----------------------------------------------

    def _content(self) -> bool:
        place, mark = self._opens.find(self._rest)
        end = place if place >= 0 else self._opens.first_open(self._rest)
        self._text(self._rest[:end])
        self._rest = self._rest[end:]
        if place < 0:
            return False
        self._is_bare = False
        self._keep(len(mark))
        return self._go(self._begin)

    def _begin(self) -> bool:
        """Behind a mark, or at the beginning of all content."""
        style, rest = self._style, self._rest
        place = after_blanks(rest)
        if place == len(rest):
            return False
        if self._is_bare and rest[place] not in "{[":
            return self._fence(place)
        if self._raw in style.sections:
            return self._open_of_section(place)
        if style.takes_objects and rest[place] == "[":
            if self._opens.begins_at(rest, place):
                return False
            if not self._opens.at(rest, place):
                return self._list_in(place)
        if style.takes_objects and rest[place] == "{":
            self._keep(place)
            return self._go(self._new_object())
        if style.header is not None and not self._is_bare:
            return self._go(self._head)
        return self._no_call()

    def _fence(self, place: int) -> bool:
        """At the beginning of all content, and before a bare call."""
        mark = self._fences.at(self._rest, place)
        if self._raw:  # it was behind a fence
            return self._no_call()
        if mark:
            self._keep(place + len(mark))
            return True
        return not self._fences.begins_at(self._rest, place) and self._go(self._content)

    def _list_in(self, place: int) -> bool:
        rest = self._rest
        inner = after_blanks(rest, place + 1)
        if inner == len(rest):
            return False
        if rest[inner] != "{":
            return self._go(self._head) if self._style.header is not None and not self._is_bare else self._no_call()
        self._keep(inner)
        return self._go(self._new_object())

    def _open_of_section(self, place: int) -> bool:
        opens = Marks(self._style.opens)
        mark = opens.at(self._rest, place)
        if not mark:
            return False if opens.begins_at(self._rest, place) else self._no_call()
        self._keep(place + len(mark))
        return True

    def _head(self) -> bool:
        style = self._style
        assert style.header is not None, "only such formats come here"
        place, mark = self._header_ends.find(self._rest)
        num_known = place if place >= 0 else self._header_ends.first_open(self._rest)
        opened, _ = self._opens.find(self._rest, 0, num_known)
        if opened >= 0 or num_known > MAX_HEADER_CHARS:
            return self._no_call()
        if place < 0:
            return False
        found = style.header.name.fullmatch(self._rest[:place].strip())
        if found is None:
            return self._no_call()
        self._name = found[1]
        self._keep(place if mark == "{" else place + len(mark))
        self._arguments = ArgumentsText(self._stops)
        return self._go(self._header_arguments)

    def _header_arguments(self) -> bool:
        arguments = self._arguments
        assert arguments is not None, "they follow their header"
        start = after_blanks(self._rest)
        if not arguments.is_begun and self._closes.at(self._rest, start):
            arguments.close_empty()
        elif not arguments.is_begun and self._closes.begins_at(self._rest, start):
            return False
        else:
            self._keep(arguments.feed(self._rest, 0))
        if arguments.is_wrong or (arguments.is_broken and not arguments.is_object):
            return self._no_call()
        if arguments.is_object:
            self._show_arguments(arguments)
        return self._go(self._after) if arguments.is_closed or arguments.is_broken else False

    def _new_object(self) -> Callable[[], bool]:
        self._object = CallObject(self._stops, self._names if self._style.needs_known_name and self._is_bare else None)
        self._arguments, self._name, self._is_text = None, "", False
        return self._object_on

    def _object_on(self) -> bool:
        found = self._object
        assert found is not None, "it was begun"
        self._keep(found.feed(self._rest, 0))
        self._name, self._arguments = found.name, found.arguments
        if not self._is_named and (found.is_no_call or self._is_text):
            return self._object_as_text(found)
        if self._arguments is not None and (self._is_named or found.is_call):
            self._show_arguments(self._arguments)
        if found.is_no_json and not self._is_named:
            return self._no_call()
        return self._go(self._after) if found.is_ended or found.is_no_json else False

    def _object_as_text(self, found: CallObject) -> bool:
        """To its end: marks inside of its strings are none."""
        self._is_text = True
        self._text(self._raw)
        self._raw = ""
        if not (found.is_ended or found.is_no_json):
            return False
        return self._end_call(self._content)

    def _after(self) -> bool:
        """Behind a call: its closing marks, further calls of the same list, braces too many."""
        rest = self._rest
        place = after_blanks(rest)
        if place == len(rest):
            return False
        if mark := self._closes.at(rest, place):
            self._has_closed_mark = True
            self._rest = rest[place + len(mark) :]
            return True
        if self._closes.begins_at(rest, place):
            return False
        if not self._has_closed_mark:
            taken = self._next_of_list(place)
            if taken is not None:
                return taken
        self._is_bare = False
        return self._end_call(self._content)

    def _next_of_list(self, place: int) -> bool | None:
        """None: there is none, text follows."""
        rest = self._rest
        if rest[place] in "}]":
            self._rest = rest[place + 1 :]
            return True
        if self._style.header is not None and self._object is None:
            return None
        start = after_blanks(rest, place + 1) if rest[place] in ",;" else place
        if start == len(rest):
            return False
        if rest[start] != "{":
            return None
        self._end_call(self._after)
        self._raw, self._rest = rest[:start], rest[start:]
        return self._go(self._new_object())

    # ---- what comes out ----------------------------------------------------------------------------------------------

    def _keep(self, num_chars: int) -> None:
        """They are read, and decided on later; of a call that came out, they are its frame."""
        if not self._is_named:
            self._raw += self._rest[:num_chars]
        self._rest = self._rest[num_chars:]

    def _no_call(self) -> bool:
        """The mark is text; what follows it is read anew."""
        raw = self._raw + self._rest
        num_chars = len(self._opens.at(raw, 0)) or len(self._raw) or 1
        self._text(raw[:num_chars])
        self._rest = raw[num_chars:]
        return self._end_call(self._content)

    def _end_call(self, then: Callable[[], bool]) -> bool:
        self._raw, self._name = "", ""
        self._object = self._arguments = None
        self._is_named = self._is_text = self._has_closed_mark = False
        return self._go(then)

    def _go(self, then: Callable[[], bool]) -> bool:
        self._read = then
        return True

    def _show_arguments(self, arguments: ArgumentsText) -> None:
        text = arguments.take()
        if not self._is_named:
            index, self._num_calls = self._num_calls, self._num_calls + 1
            call_id = self._style.make_id(self._asked, self._name, index)
            self._parts.append(ToolCallPart(index, text, call_id, self._name))
            self._is_named = self.is_in_call = True
            self._raw = ""
        else:
            self._show(text)
        if arguments.is_closed and self.is_in_call:
            self.is_in_call = False
            self.num_closed_calls += 1

    def _show(self, text: str) -> None:
        if text:
            self._parts.append(ToolCallPart(self._num_calls - 1, text))

    def _text(self, text: str) -> None:
        if text:
            self._parts.append(TextPart(text))

    def _take_parts(self) -> Sequence[Part]:
        parts, self._parts = self._parts, []
        return parts
