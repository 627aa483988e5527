"""Reads configs and reports, which are small: a file without end is refused, not read into memory."""

from __future__ import annotations

from pathlib import Path

MAX_BYTES = 2**26  # arbitrary: a thousand times what any of them has


def read_small(path: Path) -> str:
    """The text. Raises OSError or ValueError."""
    with path.open("rb") as file:
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise ValueError(f"it has more than {MAX_BYTES:,} bytes")
    return content.decode("utf-8-sig")
