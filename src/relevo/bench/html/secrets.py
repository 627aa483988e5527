"""Takes keys out of what is written down: command lines, addresses, and texts that repeat them. Pure.

What a flag, a variable or a JSON field is called says whether its value is one: `--api-key`, `HF_TOKEN=`,
`"api_key": `; not `--max-tokens`. The user's part of an address, too, and whatever follows `Bearer`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence

REDACTED = "***"
_SHORTEST = 6  # characters: shorter values would take words out of a text that only look like them
_WORDS = r"(?:api|access|admin)[-_]?key|(?<![A-Za-z])key|secret|passwd|password|token|credentials?|authorization"
_NAME = rf"[\w.-]*?(?:{_WORDS})"
_IS_SECRET = re.compile(rf"(?:{_NAME})\Z", re.IGNORECASE)
_VALUE = r"""("(?:[^"\\]|\\.)*"|'[^']*'|[^\s"',;&}]+)"""
_ASSIGNED = re.compile(rf"""((?<![\w.-])(?:--?)?{_NAME}["']?\s*[=:]\s*){_VALUE}""", re.IGNORECASE)
_GIVEN = re.compile(rf"""((?<![\w.-])--?{_NAME}\s+){_VALUE}""", re.IGNORECASE)
_BEARER = re.compile(r"(\b(?:Bearer|Basic)\s+)[^\s\"']+", re.IGNORECASE)
_USER = re.compile(r"(\b[a-z][a-z0-9+.-]*://)[^/\s@]+@", re.IGNORECASE)


def is_secret_name(name: str) -> bool:
    """Of a flag, a variable or a field."""
    return _IS_SECRET.match(name.lstrip("-")) is not None


def redacted(text: str) -> str:
    """Any text with flags, variables, fields or addresses in it."""
    text = _USER.sub(rf"\1{REDACTED}@", text)
    text = _BEARER.sub(rf"\1{REDACTED}", text)
    for pattern in (_ASSIGNED, _GIVEN):
        text = pattern.sub(rf"\1{REDACTED}", text)
    return text


def redacted_command(argv: Sequence[str]) -> list[str]:
    """As it was typed, word by word."""
    words: list[str] = []
    hides_next = False
    for word in argv:
        if hides_next:
            words.append(REDACTED)
            hides_next = False
            continue
        name, equals, _ = word.partition("=")
        if word.startswith("-") and is_secret_name(name):
            words.append(f"{name}={REDACTED}" if equals else word)
            hides_next = not equals
        else:
            words.append(redacted(word))
    return words


def shell_line(argv: Sequence[str]) -> str:
    """Of words that are redacted already."""
    return " ".join(word if word == REDACTED else shlex.quote(word) for word in argv)


def known_secrets(argv: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """Values that are secrets by their names here: where a server repeats one, it is taken out of there, too."""
    found = [value for name, value in environment.items() if is_secret_name(name)]
    for word, after in zip(argv, [*argv[1:], ""], strict=True):
        name, equals, value = word.partition("=")
        if word.startswith("-") and is_secret_name(name):
            found.append(value if equals else after)
    parts = {part.strip() for value in found for part in (value, *value.split(","))}
    return sorted((part for part in parts if len(part) >= _SHORTEST), key=len, reverse=True)


def without(text: str, secrets: Iterable[str]) -> str:
    for secret in secrets:
        text = text.replace(secret, REDACTED)
    return text
