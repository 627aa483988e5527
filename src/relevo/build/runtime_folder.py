"""The folder of a running server's sockets: short, for this user only, and gone when the server is.

A server that is killed cannot remove its own. The folder holds a lock that the kernel opens when its owner ends,
however it ends, and the next start removes every folder whose lock is open. Sockets' names have at most 107 bytes, so
that a long TMPDIR is passed over; a machine without any place to write is said in one sentence.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from relevo.core.errors import StartError

MAX_BASE_CHARACTERS = 60  # required: with folder and socket names it stays below the kernel's 107 bytes
_PREFIX = "relevo-run-"
_LOCK = "lock"


def candidates(environ: Mapping[str, str]) -> list[Path]:
    """In this order; those that are short enough."""
    named = [environ.get("TMPDIR"), environ.get("XDG_RUNTIME_DIR"), "/tmp", "/dev/shm", "/var/tmp"]
    return [Path(name) for name in dict.fromkeys(named) if name and len(os.fsencode(name)) <= MAX_BASE_CHARACTERS]


@contextlib.contextmanager
def runtime_folder(environ: Mapping[str, str] = os.environ) -> Iterator[str]:
    """Raises StartError if no place can be written to."""
    bases = candidates(environ)
    for base in bases:
        sweep(base)
    folder, lock_fd = _made(bases)
    try:
        yield str(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock_fd)


def sweep(base: Path) -> None:
    """Remove what servers of this user left here that have ended."""
    with contextlib.suppress(OSError):
        for folder in base.glob(_PREFIX + "*"):
            with contextlib.suppress(OSError):
                _remove_if_left(folder)


def _remove_if_left(folder: Path) -> None:
    if folder.is_symlink() or folder.lstat().st_uid != os.geteuid():
        return
    try:
        lock_fd = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW)
    except FileNotFoundError:
        folder.rmdir()  # only if it is empty: its maker then makes another
        return
    try:
        fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(lock_fd)


def _made(bases: list[Path]) -> tuple[Path, int]:
    """The folder and its lock, which is held."""
    reasons = []
    for base in bases:
        for _attempt in range(3):  # a start at the same moment may sweep it before it is locked
            try:
                folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=base))
            except OSError as error:
                reasons.append(f"{base}: {error.strerror}")
                break
            with contextlib.suppress(OSError):
                folder.chmod(0o700)  # whatever the umask is
                lock_fd = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
                fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if (folder / _LOCK).exists():
                    return folder, lock_fd
    raise StartError(
        f"there is no place for the sockets of this server ({'; '.join(reasons)}); make one writable, "
        f"for example a tmpfs at /tmp, or name one of at most {MAX_BASE_CHARACTERS} characters with TMPDIR"
    )
