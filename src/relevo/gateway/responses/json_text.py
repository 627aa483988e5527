"""JSON of what clients sent, to be sent back or kept: numbers of any size, and no deeper than can be read again."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import orjson

from relevo.core.errors import InvalidRequest


def encoded(value: Any, param: str) -> bytes:
    """Raises InvalidRequest, naming the field, for what is nested too deeply."""
    try:
        return orjson.dumps(value)
    except TypeError:  # numbers beyond 64 bits, or too deep
        pass
    try:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
        msgspec.json.decode(text)
    except RecursionError:
        raise InvalidRequest(f"'{param}' is nested too deeply.", param=param) from None
    return text


def fragment(value: Any, param: str) -> orjson.Fragment:
    """As `encoded`, to be a part of what orjson encodes."""
    return orjson.Fragment(encoded(value, param))


def decoded(text: str) -> Any:
    return msgspec.json.decode(text)
