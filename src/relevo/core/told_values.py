"""A value that a client sent, in the sentence of an error: texts in quotes, all else as the JSON that it was."""

from __future__ import annotations

import json
from typing import Any

MAX_CHARS = 200  # arbitrary


def as_sent(value: Any) -> str:
    if isinstance(value, str):
        return repr(value if len(value) <= MAX_CHARS else f"{value[:MAX_CHARS]}…")
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        return "something else"
    return text if len(text) <= MAX_CHARS else f"{text[:MAX_CHARS]}…"
