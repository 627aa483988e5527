"""Single values as they are written in an answer: compact, every character in its only spelling."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from relevo.gateway.held.patterns.nodes import json_literal

Words = Mapping[bool | None, str]
JSON_WORDS: Words = {None: "null", True: "true", False: "false"}
PYTHON_WORDS: Words = {None: "None", True: "True", False: "False"}


def literal(value: Any, words: Words) -> str:
    match value:
        case None | bool():
            return words[value]
        case str():
            return json_literal(value)
        case list():
            return f"[{','.join(literal(item, words) for item in value)}]"
        case dict():
            members = (f"{json_literal(name)}:{literal(member, words)}" for name, member in value.items())
            return f"{{{','.join(members)}}}"
    return str(value) if isinstance(value, int) else repr(value)
