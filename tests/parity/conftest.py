"""The parity runs start real servers, with the same starter as the end-to-end tests."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before torch loads: see build/worker.py
sys.path.append(str(Path(__file__).parent.parent / "e2e"))


@pytest.fixture
def say(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Writes one line to the terminal: the figures of a run are its result, not only whether it passed."""
    writer = request.config.get_terminal_writer()
    return lambda line: writer.line(f"\n{line}")
