"""Folders that are kept for several tests of a run, and removed when it ends."""

from __future__ import annotations

import shutil
from pathlib import Path
from tempfile import mkdtemp

_kept: list[Path] = []


def kept_folder(prefix: str) -> Path:
    """An empty one. Its name begins with `relevo-PREFIX-`."""
    _kept.append(Path(mkdtemp(prefix=f"relevo-{prefix}-")))
    return _kept[-1]


def remove_kept_folders() -> None:
    while _kept:
        shutil.rmtree(_kept.pop(), ignore_errors=True)
