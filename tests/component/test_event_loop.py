"""Which event loop the HTTP processes run on."""

from __future__ import annotations

import asyncio
import sys

import pytest

from relevo.build.event_loop import run_until_complete


async def note_loop(found: list[str]) -> None:
    found.append(type(asyncio.get_running_loop()).__module__)


def test_it_is_uvloop() -> None:
    """Red when only a library is told which loop to use, which does not make the loop."""
    pytest.importorskip("uvloop")
    found: list[str] = []
    run_until_complete(note_loop(found))
    assert found == ["uvloop"]


def test_without_uvloop_it_is_asyncio(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)
    found: list[str] = []
    run_until_complete(note_loop(found))
    assert found and found[0].startswith("asyncio")
