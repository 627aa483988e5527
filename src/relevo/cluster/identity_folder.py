"""The folder of a node's keys: for its user alone, and never with half of a file in it.

Owns modes, names of files and the lock that processes of one box take to change one. Does not know what is in them.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from relevo.core.errors import StartError

CA_CERTIFICATE, CA_KEY = "ca.crt", "ca.key"
NODE = "node.pem"  # key and certificate in one file: they change together
TERMS = "authority.json"  # how long certificates live
TOKENS, ROSTER, REVOKED = "tokens.json", "nodes.json", "revoked.json"
_LOCK = "lock"
_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_MAX_BYTES = 64 << 20  # arbitrary; no file of ours comes near

FileState = tuple[int, int, int] | None


def make_folder(folder: Path) -> None:
    """For its user alone, whatever the umask is. Raises StartError."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise StartError(f"the folder {folder} cannot be made: {error.strerror}; choose another --dir") from error
    check_folder(folder)


def check_folder(folder: Path) -> None:
    """Raises StartError: it is not there, or others could read or change what is in it."""
    try:
        state = folder.stat()
    except OSError as error:
        raise StartError(
            f"the cluster folder {folder} cannot be opened: {error.strerror}; make it with `relevo cluster init`, or "
            "by joining a cluster"
        ) from error
    if not stat.S_ISDIR(state.st_mode):
        raise StartError(f"the cluster folder {folder} is no folder; choose another --dir")
    _check_owner(folder, state, "700")


def read_private(path: Path) -> bytes:
    """Raises StartError: others could have read or written it; FileNotFoundError."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise StartError(f"{path} cannot be read: {error.strerror}; it has to be a file of this user") from error
    with os.fdopen(fd, "rb") as file:
        state = os.fstat(fd)
        if not stat.S_ISREG(state.st_mode) or state.st_size > _MAX_BYTES:
            raise StartError(f"{path} is no file of a cluster; move it away")
        _check_owner(path, state, "600")
        return file.read()


def write_private(path: Path, content: bytes) -> None:
    """Whole and on the disk when this returns, or as it was. Raises StartError."""
    try:
        fd, unnamed = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(fd, "wb") as file:
                os.fchmod(fd, 0o600)
                file.write(content)
                file.flush()
                os.fsync(fd)
            Path(unnamed).replace(path)
        except BaseException:
            Path(unnamed).unlink(missing_ok=True)
            raise
        _sync_folder(path.parent)
    except OSError as error:
        raise StartError(f"{path} cannot be written: {error.strerror}; make room, or choose another --dir") from error


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """One process at a time changes files here; held for milliseconds. Raises StartError."""
    try:
        fd = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StartError(f"{folder / _LOCK} cannot be opened: {error.strerror}; see who owns {folder}") from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def file_state(path: Path) -> FileState:
    """Changes when the file is replaced or written to."""
    try:
        state = path.stat()
    except OSError:
        return None
    return state.st_ino, state.st_mtime_ns, state.st_size


def _check_owner(path: Path, state: os.stat_result, wanted: str) -> None:
    if state.st_uid not in (os.geteuid(), 0):
        raise StartError(f"{path} belongs to another user, who could change it; give it to the one who runs Relevo")
    if state.st_mode & _OTHERS:
        mode = stat.S_IMODE(state.st_mode)
        raise StartError(f"{path} is open to other users (mode {mode:o}); run: chmod {wanted} {path}")


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
