"""What regular expressions consist of here, and how they are written for the lexer: plain, or inside a JSON string.

Inside a JSON string every character has exactly one way to be written (`json_character`), so that two texts are equal
iff they are written alike.
"""

from __future__ import annotations

from dataclasses import dataclass

Ranges = tuple[tuple[int, int], ...]  # of code points, ascending, apart from each other

MAX_CODE_POINT = 0x10FFFF
_SURROGATES = (0xD800, 0xDFFF)
_SHORT_ESCAPES = {'"': '"', "\\": "\\", "\b": "b", "\f": "f", "\n": "n", "\r": "r", "\t": "t"}
_PLAIN = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_ :,=@%;<>!'\"")


@dataclass(frozen=True, slots=True)
class Characters:
    """One of them; none at all: nothing matches."""

    ranges: Ranges


@dataclass(frozen=True, slots=True)
class Row:
    """One after the other; none: the empty text."""

    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class OneOf:
    options: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Repeated:
    item: Node
    low: int
    high: int | None


@dataclass(frozen=True, slots=True)
class Anchor:
    is_start: bool


Node = Characters | Row | OneOf | Repeated | Anchor


def united(ranges: list[tuple[int, int]]) -> Ranges:
    """In order, without overlaps, without surrogates."""
    merged: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    first, last = _SURROGATES
    return tuple(
        part
        for low, high in merged
        for part in ((low, min(high, first - 1)), (max(low, last + 1), high))
        if part[0] <= part[1]
    )


def others(ranges: Ranges) -> Ranges:
    """All characters but these."""
    gaps, start = [], 0
    for low, high in ranges:
        gaps.append((start, low - 1))
        start = high + 1
    gaps.append((start, MAX_CODE_POINT))
    return united([(low, high) for low, high in gaps if low <= high])


ANY = Characters(united([(0, MAX_CODE_POINT)]))


def text_node(text: str) -> Node:
    return Row(tuple(Characters(((ord(character), ord(character)),)) for character in text))


def lexer_character(code_point: int) -> str:
    character = chr(code_point)
    return character if character in _PLAIN else f"\\x{{{code_point:x}}}"


def lexer_text(text: str) -> str:
    """A text as a regular expression of the lexer's."""
    return "".join(lexer_character(ord(character)) for character in text)


def json_character(code_point: int) -> str:
    """As it stands in a JSON string, here."""
    character = chr(code_point)
    if character in _SHORT_ESCAPES:
        return "\\" + _SHORT_ESCAPES[character]
    return character if code_point >= 0x20 else f"\\u{code_point:04x}"


def json_literal(text: str) -> str:
    return '"' + "".join(json_character(ord(character)) for character in text) + '"'


def _plain_class(ranges: Ranges) -> str:
    shown = "".join(f"\\x{{{low:x}}}" if low == high else f"\\x{{{low:x}}}-\\x{{{high:x}}}" for low, high in ranges)
    return f"[{shown}]"


def _json_class(ranges: Ranges) -> str:
    escaped = [
        code_point
        for code_point in (*range(0x20), ord('"'), ord("\\"))
        if any(low <= code_point <= high for low, high in ranges)
    ]
    raw = united(
        [
            (max(low, first), min(high, last))
            for low, high in ranges
            for first, last in ((0x20, 0x21), (0x23, 0x5B), (0x5D, MAX_CODE_POINT))
            if max(low, first) <= min(high, last)
        ]
    )
    options = [lexer_text(json_character(code_point)) for code_point in escaped]
    if raw:
        options.append(_plain_class(raw))
    return options[0] if len(options) == 1 else f"(?:{'|'.join(options)})"


def can_match(node: Node) -> bool:
    """Whether there is a text of it: an empty class has none."""
    match node:
        case Characters(ranges):
            return bool(ranges)
        case Row(items):
            return all(can_match(item) for item in items)
        case OneOf(options):
            return any(can_match(option) for option in options)
        case Repeated(item, low):
            return low == 0 or can_match(item)
    return True


def written(node: Node, *, in_json: bool) -> str:
    """For the lexer, without the quotes around a JSON string. `node` has no anchors and can match."""
    match node:
        case Characters(ranges):
            return _json_class(ranges) if in_json else _plain_class(ranges)
        case Row(items):
            return "".join(written(item, in_json=in_json) for item in items)
        case OneOf(options):
            possible = [written(option, in_json=in_json) for option in options if can_match(option)]
            return f"(?:{'|'.join(possible)})"
        case Repeated(item, low, high):
            if not can_match(item):
                return ""
            return f"(?:{written(item, in_json=in_json)}){{{low},{'' if high is None else high}}}"
        case Anchor():
            raise AssertionError("anchors are resolved before a pattern is written")
