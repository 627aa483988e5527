"""What a JSON file of `relevo bench` says of itself, so that a reader of files knows what it has before it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

FORMAT = 1  # grows when a figure gets another name, place or unit


def stamped(kind: str, body: Mapping[str, Any], *, interrupted: bool) -> dict[str, Any]:
    """`kind`: the subcommand that measured."""
    return {"kind": kind, "format": FORMAT, "is_complete": not interrupted, **body}
