"""The operator's own key: a file beside the ledger that only the user of the server can read.

Made at the first start and kept, so that commands on the same machine may do what is an admin's without any being set
up. It is not needed where --admin-key or admin keys of the database are used.
"""

from __future__ import annotations

import os
import secrets
import stat
import tempfile
from pathlib import Path

from relevo.core.errors import StartError

FILE_NAME = "operator-key"
_MAX_BYTES = 1024  # of a file that people wrote; ours have 46
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def operator_key(folder: Path) -> str:
    """That of this folder, made if there is none. Raises StartError if it is not safe with this user."""
    path = folder / FILE_NAME
    try:
        if not os.path.lexists(path):
            _make(path, "ro-" + secrets.token_urlsafe(32))
    except OSError as error:
        raise StartError(f"{path} cannot be written: {error.strerror}; choose another --data-dir") from error
    return read_operator_key(folder)


def _make(path: Path, key: str) -> None:
    """It has its name once it is whole: a start that is killed leaves no half of it, and of two the first one stays."""
    fd, unnamed = tempfile.mkstemp(prefix=f"{path.name}.", dir=path.parent)
    try:
        with os.fdopen(fd, "w") as file:
            os.fchmod(fd, 0o600)
            file.write(key + "\n")
        try:
            os.link(unnamed, path)
        except FileExistsError:
            pass
        except OSError:  # a file system without links
            Path(unnamed).replace(path)
    finally:
        Path(unnamed).unlink(missing_ok=True)


def read_operator_key(folder: Path) -> str:
    """Raises StartError: there is none, or others could have read or written it."""
    path = folder / FILE_NAME
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError as error:
        raise StartError(f"{path} cannot be read: {error.strerror}") from error
    with os.fdopen(fd) as file:
        state = os.fstat(fd)
        if state.st_uid not in (os.geteuid(), 0) or state.st_mode & _OTHERS or not stat.S_ISREG(state.st_mode):
            raise StartError(f"{path} is not this user's alone; remove it, the next start makes a new one")
        key = file.read(_MAX_BYTES).strip()
    if not key:
        raise StartError(f"{path} is empty; remove it, the next start makes a new one")
    return key
