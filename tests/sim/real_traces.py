"""Public traces that lie beside the repository, where they do; the repository is tested and runs without them."""

from __future__ import annotations

from pathlib import Path

import pytest

TRACES = Path(__file__).parents[3] / "shared" / "data" / "traces"


def trace(name: str) -> Path:
    """The path of a trace; skips the test, saying so, where it is not there."""
    path = TRACES / name
    if not path.exists():
        pytest.skip(f"{path} is not there")
    return path
