"""Reads the regular expressions of JSON schemas (ECMA-262, with the `u` flag's escapes) into nodes.

What no automaton can hold is refused by its name: look-around, backreferences, word boundaries. Where dialects differ
the narrower reading is taken, so that a text which is held matches in both (`.` and `\\s`). Does not know anchors'
meaning, see `whole`. Source: ECMA-262, "RegExp Objects".
"""

from __future__ import annotations

import re

from relevo.gateway.held.patterns.nodes import (
    MAX_CODE_POINT,
    Anchor,
    Characters,
    Node,
    OneOf,
    Ranges,
    Repeated,
    Row,
    others,
    united,
)

MAX_PATTERN_CHARS = 10_000  # arbitrary
MAX_GROUP_DEPTH = 50  # arbitrary
MAX_COUNT = 1_000_000  # arbitrary
_DIGITS: Ranges = ((0x30, 0x39),)
_WORD: Ranges = ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))
_BLANKS: Ranges = ((0x09, 0x0D), (0x20, 0x20))
_ALL_BLANKS = united([(9, 13), (0x1C, 0x20), (0x85, 0x85), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A)])
_NOT_BLANK = others(
    united([*_ALL_BLANKS, (0x2028, 0x2029), (0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000), (0xFEFF, 0xFEFF)])
)
_CLASSES = {"d": _DIGITS, "D": others(_DIGITS), "w": _WORD, "W": others(_WORD), "s": _BLANKS, "S": _NOT_BLANK}
_IN_NEGATION = _CLASSES | {"s": others(_NOT_BLANK), "S": others(_BLANKS)}  # the wider reading, which excludes more
_DOT = others(((0x0A, 0x0A), (0x0D, 0x0D), (0x2028, 0x2029)))
_CONTROLS = {"n": 10, "r": 13, "t": 9, "v": 11, "f": 12, "0": 0}
_COUNTS = re.compile(r"\{([0-9]{1,9})(?:(,)([0-9]{0,9}))?\}")
_GROUPS = {
    "(?=": "look-ahead",
    "(?!": "negative look-ahead",
    "(?<=": "look-behind",
    "(?<!": "negative look-behind",
}


class BadPattern(Exception):
    """Not a regular expression, or none that can be held. The text says why."""


def read_pattern(pattern: str) -> Node:
    """Raises BadPattern."""
    if len(pattern) > MAX_PATTERN_CHARS:
        raise BadPattern(f"a pattern may have {MAX_PATTERN_CHARS} characters")
    reader = _Reader(pattern)
    node = reader.choice(0)
    if reader.position < len(pattern):
        raise BadPattern(f"unbalanced ')' at character {reader.position}")
    return node


class _Reader:
    def __init__(self, text: str) -> None:
        self.text, self.position = text, 0

    def _next(self, size: int = 1) -> str:
        return self.text[self.position : self.position + size]

    def _take(self, size: int = 1) -> str:
        taken = self._next(size)
        if len(taken) < size:
            raise BadPattern("the pattern ends too early")
        self.position += size
        return taken

    def choice(self, depth: int) -> Node:
        if depth > MAX_GROUP_DEPTH:
            raise BadPattern(f"groups are nested deeper than {MAX_GROUP_DEPTH}")
        options = [self._row(depth)]
        while self._next() == "|":
            self._take()
            options.append(self._row(depth))
        return options[0] if len(options) == 1 else OneOf(tuple(options))

    def _row(self, depth: int) -> Node:
        items: list[Node] = []
        while self._next() not in ("", "|", ")"):
            items.append(self._repeated(self._atom(depth)))
        return items[0] if len(items) == 1 else Row(tuple(items))

    def _atom(self, depth: int) -> Node:
        character = self._take()
        match character:
            case "^" | "$":
                return Anchor(character == "^")
            case ".":
                return Characters(_DOT)
            case "(":
                return self._group(depth)
            case "[":
                return Characters(self._class())
            case "\\":
                return Characters(self._escape(in_class=False))
            case "*" | "+" | "?":
                raise BadPattern(f"nothing to repeat before {character!r}")
        return Characters(((ord(character), ord(character)),))

    def _group(self, depth: int) -> Node:
        for opening, name in _GROUPS.items():
            if self.text.startswith(opening, self.position - 1):
                raise BadPattern(f"{name} ('{opening}') cannot be held")
        if self._next() == "?":
            named = re.compile(r"\?(?::|P?<[A-Za-z_$][A-Za-z0-9_$]*>)").match(self.text, self.position)
            if named is None:
                raise BadPattern(f"groups of the kind {'(' + self._next(3)!r} cannot be held")
            self.position = named.end()
        node = self.choice(depth + 1)
        if self._next() != ")":
            raise BadPattern("a group is not closed")
        self._take()
        return node

    def _repeated(self, item: Node) -> Node:
        match self._next():
            case "*":
                low, high, size = 0, None, 1
            case "+":
                low, high, size = 1, None, 1
            case "?":
                low, high, size = 0, 1, 1
            case "{":
                counts = _COUNTS.match(self.text, self.position)
                if counts is None:
                    raise BadPattern(f"'{{' at character {self.position} begins no count; write '\\{{'")
                low, size = int(counts[1]), len(counts[0])
                high = int(counts[3]) if counts[3] else None if counts[2] else low
            case _:
                return item
        self._take(size)
        if max(low, high or 0) > MAX_COUNT or (high is not None and low > high):
            raise BadPattern(f"a count is out of order or larger than {MAX_COUNT}")
        if self._next() in ("?", "+"):  # which of several matches is found does not matter to whether there is one
            if self._take() == "+":
                raise BadPattern("possessive counts cannot be held")
        elif self._next() in ("*", "{"):
            raise BadPattern(f"nothing to repeat at character {self.position}")
        return Repeated(item, low, high)

    def _class(self) -> Ranges:
        is_negated = self._next() == "^"
        if is_negated:
            self._take()
        ranges: list[tuple[int, int]] = []
        while self._next() != "]":
            first = self._class_item(is_negated)
            if self._next() == "-" and self._next(2) != "-]" and _is_one(first):
                self._take()
                last = self._class_item(is_negated)
                if not _is_one(last):
                    ranges += [*first, (0x2D, 0x2D), *last]
                    continue
                if last[0][0] < first[0][0]:
                    raise BadPattern("a range of characters is out of order")
                ranges.append((first[0][0], last[0][0]))
            else:
                ranges += first
        self._take()
        found = united(ranges)
        return others(found) if is_negated else found

    def _class_item(self, is_negated: bool) -> Ranges:
        character = self._take()
        if character == "\\":
            return self._escape(in_class=True, is_negated=is_negated)
        return ((ord(character), ord(character)),)

    def _escape(self, *, in_class: bool, is_negated: bool = False) -> Ranges:
        letter = self._take()
        if letter in _CLASSES:
            return (_IN_NEGATION if is_negated else _CLASSES)[letter]
        if letter in "bB":
            if in_class and letter == "b":
                return ((8, 8),)
            raise BadPattern(f"a word boundary ('\\{letter}') cannot be held")
        if letter in "123456789k":
            raise BadPattern(f"a backreference ('\\{letter}') cannot be held")
        if letter in "pP":
            raise BadPattern(f"a Unicode property ('\\{letter}') cannot be held")
        code_point = self._code_point(letter)
        if 0xD800 <= code_point <= 0xDFFF or code_point > MAX_CODE_POINT:
            raise BadPattern(f"'\\{letter}' names no character")
        return ((code_point, code_point),)

    def _code_point(self, letter: str) -> int:
        if letter in _CONTROLS:
            return _CONTROLS[letter]
        if letter == "c":
            return ord(self._take()) % 32
        if letter == "x":
            return self._hexadecimal(self._take(2))
        if letter == "u" and self._next() == "{":
            end = self.text.find("}", self.position)
            if end < 0:
                raise BadPattern("'\\u{' is not closed")
            return self._hexadecimal(self._take(end + 1 - self.position)[1:-1])
        if letter == "u":
            unit = self._hexadecimal(self._take(4))
            if 0xD800 <= unit < 0xDC00 and self._next(2) == "\\u":
                self._take(2)
                return 0x10000 + (unit - 0xD800 << 10) + self._hexadecimal(self._take(4)) - 0xDC00
            return unit
        if letter.isascii() and letter.isalnum():
            raise BadPattern(f"'\\{letter}' is no escape of ECMA-262")
        return ord(letter)

    def _hexadecimal(self, digits: str) -> int:
        if not re.fullmatch(r"[0-9a-fA-F]{1,6}", digits):
            raise BadPattern(f"{digits!r} is not hexadecimal")
        return int(digits, 16)


def _is_one(ranges: Ranges) -> bool:
    return len(ranges) == 1 and ranges[0][0] == ranges[0][1]
