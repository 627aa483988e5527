"""JSON in text that comes in pieces: where values end, and the object that a call is written as.

Aware of strings: a brace, a quote or a mark inside one ends nothing. What is passed on is the text as it was written;
only control characters inside strings are escaped, since no reader of JSON takes them raw. Knows no family's marks.
"""

from __future__ import annotations

import json
import re
from typing import Literal

from relevo.gateway.dialects.marks import Marks, after_blanks

_ENDS_OF_STRING = re.compile(r'["\\]')
_STRUCTURE = re.compile(r'["{}\[\]]')
_CONTROL = re.compile(r"[\x00-\x1f]")
_HALF_ESCAPE = re.compile(
    r"(?<!\\)(?:\\\\)*(\\(?:u[0-9a-fA-F]{0,3})?|\\u[dD][89abAB][0-9a-fA-F]{2}(?:\\(?:u[0-9a-fA-F]{0,3})?)?)\Z"
)
_CLOSING = {"{": "}", "[": "]"}
_SCALAR = re.compile(r"[^\s,\]}<]*")
_MAX_ESCAPE_CHARS = 12
_ARGUMENTS = ("arguments", "parameters")
_MEMBERS = frozenset((*_ARGUMENTS, "name", "type", "id"))


class ValueText:
    """The text of one string, object or list. Does not check what is inside of an object or list."""

    def __init__(self, stops: Marks) -> None:
        """stops: marks that end it where they stand outside of strings."""
        self._stops = stops
        self._open: list[str] = []  # what closes what is open
        self._in_string = self._is_escaped = False
        self.text = ""  # as far as it was read and not taken
        self.is_closed = False
        self.is_broken = False  # a mark stands where it should go on

    def feed(self, text: str, place: int) -> int:
        """Reads on from `place`; returns how far it came: to its end, to a mark, or to what may become one."""
        while place < len(text) and not self.is_closed:
            if self._in_string:
                place = self._string(text, place)
                continue
            found = _STRUCTURE.search(text, place)
            structure = found.start() if found else len(text)
            mark, _ = self._stops.find(text, place, structure)
            if mark >= 0:
                self.text += text[place:mark]
                self.is_broken = True
                return mark
            if found is None:
                end = self._stops.first_open(text, place)
                self.text += text[place:end]
                return end
            if self._stops.at(text, structure) or self._stops.begins_at(text, structure):  # a mark in brackets
                self.text += text[place:structure]
                self.is_broken = bool(self._stops.at(text, structure))
                return structure
            self._structure(found[0])
            self.text += text[place : structure + 1]
            place = structure + 1
        return place

    def take(self) -> str:
        """What may be passed on: no half of an escape, and none of two that spell one character."""
        may_be_half = self._in_string and "\\" in self.text[-_MAX_ESCAPE_CHARS:]
        half = _HALF_ESCAPE.search(self.text) if may_be_half else None
        num_taken = half.start(1) if half else len(self.text)
        text, self.text = self.text[:num_taken], self.text[num_taken:]
        return text

    def _structure(self, char: str) -> None:
        if char == '"':
            self._in_string = True
        elif char in _CLOSING:
            self._open.append(_CLOSING[char])
        elif self._open:
            self._open.pop()
            self.is_closed = not self._open

    def _string(self, text: str, place: int) -> int:
        if self._is_escaped:
            self._is_escaped = False
            self.text += text[place]
            return place + 1
        found = _ENDS_OF_STRING.search(text, place)
        end = found.start() + 1 if found else len(text)
        self.text += _CONTROL.sub(lambda char: json.dumps(char[0])[1:-1], text[place:end])
        if found and found[0] == "\\":
            self._is_escaped = True
        elif found:
            self._in_string = False
            self.is_closed = not self._open
        return end


class ArgumentsText:
    """The value that is a call's arguments: an object, a string that holds one, null, or nothing of that kind."""

    def __init__(self, stops: Marks) -> None:
        self._value: ValueText | None = None
        self._stops = stops
        self._scalar = ""
        self._is_string = False
        self.text = ""  # of an object, not taken yet
        self.is_object = False  # it is certain
        self.is_closed = False
        self.is_broken = False
        self.is_wrong = False  # it is no arguments

    def feed(self, text: str, place: int) -> int:
        if not self.is_begun:
            place = after_blanks(text, place)
            if place == len(text):
                return place
            if text[place] in '{["':
                self._value = ValueText(self._stops)
                self.is_object, self._is_string = text[place] == "{", text[place] == '"'
                self.is_wrong = text[place] == "["
        return self._scalar_value(text, place) if self._value is None else self._long_value(self._value, text, place)

    @property
    def is_begun(self) -> bool:
        return self._value is not None or bool(self._scalar)

    def take(self) -> str:
        text, self.text = self.text, ""
        return text

    def take_rest(self) -> str:
        """At the end of all text."""
        half = self._value.text if self._value is not None and self.is_object else ""
        return self.take() + half

    def close_empty(self) -> None:
        self.text, self.is_object, self.is_closed = "{}", True, True

    def _long_value(self, value: ValueText, text: str, place: int) -> int:
        place = value.feed(text, place)
        self.is_closed, self.is_broken = value.is_closed, value.is_broken
        if not self._is_string:
            self.text += value.take()
        elif value.is_closed:
            self._unwrap(value.take())
        return place

    def _unwrap(self, literal: str) -> None:
        """Once: text that holds an object is that object."""
        try:
            text = json.loads(literal)
            held = json.loads(text) if text.strip() else {}
        except (ValueError, RecursionError):
            held = None
        if isinstance(held, dict):
            self.text, self.is_object = text.strip() or "{}", True
        else:
            self.is_wrong = True

    def _scalar_value(self, text: str, place: int) -> int:
        found = _SCALAR.match(text, place)
        assert found is not None, "it matches nothing, too"
        self._scalar += found[0]
        if not "null".startswith(self._scalar):
            self.is_wrong = True
        if found.end() < len(text):
            if self._scalar == "null":
                self.close_empty()
            else:
                self.is_wrong = self.is_closed = True
                self.is_broken = not self._scalar
        return found.end()


State = Literal["start", "key", "colon", "value", "next", "end"]


class CallObject:
    """`{"name": ..., "arguments": {...}}`: members in any order, others are passed over.

    Once its name is known and its arguments are certain to be an object, it is a call, whatever follows.
    """

    def __init__(self, stops: Marks, known_names: frozenset[str] | None = None) -> None:
        """known_names: it is a call only with one of them, with arguments, and with no members that calls have not.
        None: any name, and other members too."""
        self._stops = stops
        self._known = known_names
        self._is_open = False  # its own brace was read
        self._state: State = "start"
        self._value: ValueText | None = None
        self._scalar_begun = False
        self._is_name = False  # what is read is the text of the name
        self._key = ""
        self.name = ""
        self.arguments: ArgumentsText | None = None
        self.is_ended = False
        self.is_no_json = False
        self.is_no_call = False  # it is an object, and reads on to its end

    @property
    def is_call(self) -> bool:
        arguments = self.arguments
        return bool(self.name) and arguments is not None and arguments.is_object and not self.is_no_call

    def feed(self, text: str, place: int) -> int:
        """Reads on from `place`, where its `{` stands at first; returns how far it came."""
        while place < len(text) and not (self.is_ended or self.is_no_json):
            before = place, self._state
            place = self._step(text, place if self._value or self._state == "value" else after_blanks(text, place))
            if (place, self._state) == before:
                break
        return place

    def _step(self, text: str, place: int) -> int:
        if place == len(text):
            return place
        if self._state == "value":
            return self._member(text, place)
        if self._value is not None or text[place] == '"':
            return (
                self._read_key(text, place) if self._state in ("start", "key") and self._is_open else self._bad(place)
            )
        return self._punctuation(text[place], place)

    def _punctuation(self, char: str, place: int) -> int:
        match self._state, char:
            case ("start", "{") if not self._is_open:
                self._is_open = True
            case ("start" | "next", "}") if self._is_open:
                self._end()
            case ("colon", ":"):
                self._state = "value"
            case ("next", ","):
                self._state = "key"
            case _:
                return self._bad(place)
        return place + 1

    def _end(self) -> None:
        self._state, self.is_ended = "end", True
        if not self.name or (self._known is not None and self.arguments is None):
            self.is_no_call = True
        elif self.arguments is None:
            self.arguments = ArgumentsText(self._stops)
            self.arguments.close_empty()

    def _bad(self, place: int) -> int:
        self.is_no_json = True
        return place

    def _read_key(self, text: str, place: int) -> int:
        place, literal = self._string(text, place)
        if literal is not None:
            self._key, self._state = literal, "colon"
            is_odd = self._known is not None and literal not in _MEMBERS
            self.is_no_call = self.is_no_call or (is_odd and not self.is_call)
        return place

    def _string(self, text: str, place: int) -> tuple[int, str | None]:
        value = self._value = self._value or ValueText(Marks(()))
        place = value.feed(text, place)
        if not value.is_closed:
            return place, None
        self._value = None
        try:
            return place, str(json.loads(value.text))
        except ValueError:
            self.is_no_json = True
            return place, None

    def _member(self, text: str, place: int) -> int:
        if self._key in _ARGUMENTS and (self.arguments is None or not self.arguments.is_closed):
            return self._read_arguments(text, place)
        if self._value is None and not self._scalar_begun:
            place = after_blanks(text, place)
            if place == len(text):
                return place
        if self._value is None and (self._scalar_begun or text[place] not in '"{['):
            return self._scalar(text, place)
        if self._value is None:
            self._is_name = self._key == "name" and not self.name and text[place] == '"'
        if self._is_name:
            place, literal = self._string(text, place)
            if literal is not None:
                self._state, self.name = "next", literal
                is_unknown = self._known is not None and literal not in self._known
                self.is_no_call = self.is_no_call or is_unknown or not literal.strip()
            return place
        value = self._value = self._value or ValueText(self._stops)
        place = value.feed(text, place)
        value.take()
        if value.is_closed:
            self._value, self._state = None, "next"
        self.is_no_json = self.is_no_json or value.is_broken
        return place

    def _read_arguments(self, text: str, place: int) -> int:
        arguments = self.arguments = self.arguments or ArgumentsText(self._stops)
        place = arguments.feed(text, place)
        self.is_no_call = self.is_no_call or arguments.is_wrong
        if arguments.is_closed:
            self._state = "next"
        self.is_no_json = self.is_no_json or arguments.is_broken
        return place

    def _scalar(self, text: str, place: int) -> int:
        found = _SCALAR.match(text, place)
        assert found is not None, "it matches nothing, too"
        if not found[0] and not self._scalar_begun:
            return self._bad(place)
        self._scalar_begun = True
        if found.end() < len(text):
            self._scalar_begun, self._state = False, "next"
            self.is_no_call = self.is_no_call or (self._key == "name" and not self.name)
        return found.end()
