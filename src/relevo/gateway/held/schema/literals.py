"""Single values as they are written in an answer: compact, every character in its only spelling."""

from __future__ import annotations

from typing import Any

from relevo.gateway.held.patterns.nodes import json_literal


def literal(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case str():
            return json_literal(value)
        case list():
            return f"[{','.join(map(literal, value))}]"
        case dict():
            return f"{{{','.join(f'{json_literal(name)}:{literal(member)}' for name, member in value.items())}}}"
    return str(value) if isinstance(value, int) else repr(value)
