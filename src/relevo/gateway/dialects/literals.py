"""Scalars and strings of Python's and Gemma's dialects as JSON text. Nothing is evaluated."""

from __future__ import annotations

import json
import re

from relevo.gateway.dialects.argument_types import json_text

WORDS = {"true": "true", "false": "false", "null": "null", "True": "true", "False": "false", "None": "null"}
JSON_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?", re.ASCII)
OTHER_NUMBER = re.compile(r"[+-]?(?:\d[\d_]*\.?[\d_]*|\.\d[\d_]*)(?:[eE][+-]?\d+)?", re.ASCII)
OTHER_BASE = re.compile(r"[+-]?0(?:[xX][\da-fA-F_]+|[oO][0-7_]+|[bB][01_]+)", re.ASCII)
MAX_DIGITS = 400  # beyond, a word is no number that JSON's readers take; arbitrary
SIMPLE = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "a": "\a", "v": "\v", "0": "\0", "\n": ""} | {
    char: char for char in "\\'\"/"
}
NUM_DIGITS = {"x": 2, "u": 4, "U": 8}


def bare_json(word: str) -> str:
    """Of a value without quotes: what it names, or itself as a string."""
    if (found := WORDS.get(word)) is not None:
        return found
    if len(word) <= MAX_DIGITS:
        if JSON_NUMBER.fullmatch(word) and abs(float(word)) != float("inf"):
            return word
        try:
            if OTHER_BASE.fullmatch(word):
                return str(int(word, 0))
            if OTHER_NUMBER.fullmatch(word):
                value = float(word)
                is_whole = word.lstrip("+-").replace("_", "").isdecimal()
                return str(int(word)) if is_whole else json.dumps(value, allow_nan=False)
        except ValueError:
            pass
    return json_text(word)


def bare_begun(word: str) -> str:
    """Of one that was cut: a beginning of its JSON text."""
    is_scalar = word[:1] in "+-.0123456789" or any(known.startswith(word) for known in WORDS)
    return word if is_scalar else json_text(word)[:-1]


class Escapes:
    """Reads the escapes of one string. Two halves of a character that JSON writes as two escapes become that one."""

    def __init__(self) -> None:
        self._half = ""  # the first of two

    def read(self, text: str, at: int, *, is_over: bool) -> tuple[str, int]:
        """Of the escape at a backslash: what it stands for, and its length; 0: more of the text is needed."""
        kind = text[at + 1 : at + 2]
        if not kind:
            return ("\\", 1) if is_over else ("", 0)
        if kind in SIMPLE:
            return self.before() + SIMPLE[kind], 2
        if kind not in NUM_DIGITS:
            return f"{self.before()}\\{kind}", 2
        end = at + 2 + NUM_DIGITS[kind]
        digits = text[at + 2 : end]
        if not re.fullmatch(r"[\da-fA-F]*", digits, re.ASCII):
            return f"{self.before()}\\{kind}", 2
        if len(text) < end:
            return (self.before() + text[at:], len(text) - at) if is_over else ("", 0)
        return self._char(int(digits, 16)), end - at

    def before(self) -> str:
        """What is left over of a half, once something else follows it."""
        left, self._half = ("\ufffd" if self._half else ""), ""
        return left

    def _char(self, code: int) -> str:
        if 0xDC00 <= code < 0xE000 and self._half:
            high, self._half = ord(self._half), ""
            return chr(0x10000 + ((high - 0xD800) << 10) + (code - 0xDC00))
        left = self.before()
        if 0xD800 <= code < 0xDC00:
            self._half = chr(code)
            return left
        return left + (chr(code) if code <= 0x10FFFF and not 0xDC00 <= code < 0xE000 else "\ufffd")
