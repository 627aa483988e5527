"""What a custom tool is given: the raw text, out of the arguments `{"input": "..."}` that a model writes for it.

Decoded as it comes, never half a character. Arguments of another form are known only at their end: then a text under
the right name is taken wherever it stands, and else the arguments are the text themselves, so that nothing is lost.
"""

from __future__ import annotations

import re

import orjson

from relevo.gateway.responses.tools import INPUT

_HEAD = re.compile(rf'\s*\{{\s*"{INPUT}"\s*:\s*"')
_SIMPLE = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_PLAIN = re.compile(r'[^"\\]+')
_CODE_CHARS = 6  # of \uXXXX


class RawInput:
    """Of one call."""

    def __init__(self) -> None:
        self._held = ""  # not decoded yet
        self._has_begun = False
        self._has_ended = False

    def feed(self, arguments: str) -> str:
        """What is certain of the text once this is known."""
        if self._has_ended:
            return ""
        self._held += arguments
        if not self._has_begun:
            head = _HEAD.match(self._held)
            if head is None:
                return ""
            self._has_begun = True
            self._held = self._held[head.end() :]
        return self._decode()

    def flush(self) -> str:
        """What is left of the text, when no more arguments come."""
        if self._has_begun:
            return ""
        try:
            found = orjson.loads(self._held)
        except orjson.JSONDecodeError:
            return self._held
        text = found.get(INPUT) if isinstance(found, dict) else None
        return text if isinstance(text, str) else self._held

    @property
    def is_whole(self) -> bool:
        """Whether the text, or what stands for it, has come to its end."""
        if self._has_begun:
            return self._has_ended
        try:
            orjson.loads(self._held)
        except orjson.JSONDecodeError:
            return False
        return True

    def _decode(self) -> str:
        text, position, decoded = self._held, 0, list[str]()
        while position < len(text):
            plain = _PLAIN.match(text, position)
            if plain is not None:
                decoded.append(plain.group())
                position = plain.end()
            elif text[position] == '"':
                self._has_ended, position = True, len(text)
            else:
                char, num_chars = _escaped(text, position)
                if not num_chars:
                    break
                decoded.append(char)
                position += num_chars
        self._held = text[position:]
        return "".join(decoded)


def _escaped(text: str, position: int) -> tuple[str, int]:
    """The character that an escape at `position` stands for, and how long it is; 0: more of it has to come."""
    kind = text[position + 1 : position + 2]
    if not kind:
        return "", 0
    if kind != "u":
        return _SIMPLE.get(kind, "\\" + kind), 2
    code = text[position : position + _CODE_CHARS]
    if len(code) < _CODE_CHARS:
        return "", 0
    first = _code_unit(code)
    if first is None:
        return "\\u", 2
    if not 0xD800 <= first < 0xDC00:
        return ("\ufffd" if 0xDC00 <= first < 0xE000 else chr(first)), _CODE_CHARS
    rest = text[position + _CODE_CHARS : position + 2 * _CODE_CHARS]
    if len(rest) < _CODE_CHARS and "\\u".startswith(rest[:2]):
        return "", 0
    second = _code_unit(rest)
    if second is None or not 0xDC00 <= second < 0xE000:
        return "\ufffd", _CODE_CHARS
    return chr(0x10000 + ((first - 0xD800) << 10) + (second - 0xDC00)), 2 * _CODE_CHARS


def _code_unit(code: str) -> int | None:
    """Of `\\uXXXX`."""
    digits = code[2:]
    return int(digits, 16) if code.startswith("\\u") and re.fullmatch("[0-9a-fA-F]{4}", digits) else None
