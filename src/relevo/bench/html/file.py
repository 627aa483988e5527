"""Where a report is written: asked before hours of measuring, and written whole or not at all."""

from __future__ import annotations

import base64
import contextlib
import os
import secrets
from pathlib import Path

from relevo.bench.html.page import DATA_LINK
from relevo.core.errors import SettingsError


def need_writable(path: Path) -> None:
    """Raises SettingsError if no file can be written there. Leaves nothing behind."""
    try:
        if path.exists() and not path.is_file():
            raise SettingsError(f"cannot write {path}: it is no file; name one in a folder that is there")
        scratch = _scratch(path)
        with scratch.open("xb"):
            scratch.unlink()
    except (OSError, ValueError) as error:
        raise SettingsError(f"cannot write {path}: {_reason(error)}; name a file in a folder that is there") from error


def write_whole(path: Path, text: str) -> None:
    """Raises SettingsError; then what was there before is still there."""
    scratch = _scratch(path)
    try:
        with scratch.open("xb") as file:
            file.write(text.encode("utf-8", errors="replace"))
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(path.resolve())
    except OSError as error:
        raise SettingsError(f"cannot write {path}: {_reason(error)}") from error
    finally:
        with contextlib.suppress(OSError):
            scratch.unlink()


def read_data(path: Path) -> bytes:
    """The JSON that a report carries. Raises ValueError for a file that is none."""
    _, found, rest = path.read_text(encoding="utf-8").partition(DATA_LINK)
    if not found:
        raise ValueError(f"{path} is no report of relevo")
    return base64.b64decode(rest.partition('"')[0])


def _scratch(path: Path) -> Path:
    """Beside what is written, where a link leads."""
    target = path.resolve()
    return target.with_name(f".{target.name[:100]}-{secrets.token_hex(4)}")


def _reason(error: OSError | ValueError) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
