"""What is common to the answers of engines over HTTP: JSON objects, counts, errors. Each may be anything at all."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from relevo.engines.words import EngineFailed

_MAX_WORDS = 300  # characters of an engine's own message that are passed on; arbitrary


def json_object(body: bytes, engine: str) -> dict[str, Any]:
    """Raises EngineFailed."""
    try:
        told = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise EngineFailed(f"{engine} answered with what is no JSON") from error
    if not isinstance(told, dict):
        raise EngineFailed(f"{engine} answered with JSON that is no object")
    return told


def failure_of(told: Mapping[str, Any], status: int, engine: str) -> EngineFailed:
    """`status`: of the answer, where the error does not state one."""
    error = told.get("error", told)
    code = error.get("code") if isinstance(error, Mapping) else None
    message = str(error.get("message", error)) if isinstance(error, Mapping) else str(error)
    stated = code if isinstance(code, int) and code >= 400 else status
    return EngineFailed(f"{engine}: {message[:_MAX_WORDS]}", status=stated)


def whole(value: Any) -> int:
    """0: it is no count."""
    try:
        return int(value)
    except (TypeError, ValueError, OverflowError):
        return 0
