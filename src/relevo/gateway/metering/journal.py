"""Where ledger rows wait that the database does not take: a file per process, read by the next start.

Owns the files `rows-*.jsonl` in one folder: a line is a checksum and a row as JSON, the first one names the database
that the rows belong to. A living process holds a lock on its file, so another start leaves it alone. Replaying inserts
what is not there yet, by request id, so a replay that is cut short is simply repeated. What cannot be read is kept
aside in a `.corrupt` file. Knows rows and files; when a row goes here is `metering.writer`'s to say.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import stat
import tempfile
import threading
import uuid
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec

from relevo.gateway.metering.database import Connection
from relevo.gateway.metering.ledger import LedgerRow, insert_missing_rows

log = logging.getLogger("relevo.gateway.ledger")

MAX_JOURNAL_BYTES = 32 * 2**20  # of one process, some 50,000 rows; arbitrary
ROWS_PER_COMMIT = 512  # of a replay; arbitrary
MAX_STORED = 2**63 - 1  # required: BIGINT
_PATTERN = "rows-*.jsonl"


class JournalError(Exception):
    """The journal takes no more rows; the message says why."""


class Journal:
    """The file of this process, made when the first row needs it and gone when no row does. For several threads.

    A file that another process removes, replaces or cuts short is written again, under another name.
    """

    def __init__(self, folder: Path, database_name: str, *, fsync: bool = False) -> None:
        self._folder = folder
        self._database_name = database_name
        self._fsync = fsync
        self._path = folder  # the file's, once there is one
        self._fd: int | None = None
        self._num_bytes = 0
        self._lines: dict[str, bytes] = {}  # by request id: what the database is not known to have
        self._one_at_a_time = threading.Lock()

    def append(self, rows: Sequence[LedgerRow]) -> None:
        """All rows or none, kept when this returns. Raises JournalError."""
        if not rows:
            return
        lines = {row.request_id: _line(asdict(row)) for row in rows}
        with self._one_at_a_time:
            if self._num_bytes + sum(map(len, lines.values())) > MAX_JOURNAL_BYTES:
                raise JournalError(f"{self._path} holds {MAX_JOURNAL_BYTES} bytes of rows, which is all it may")
            try:
                self._put(lines)
            except OSError as error:
                raise JournalError(f"{self._path}: {error}") from error

    def kept(self, request_ids: Iterable[str]) -> None:
        """The database has them: once it has all, the file is gone."""
        with self._one_at_a_time:
            for request_id in request_ids:
                self._lines.pop(request_id, None)
            if not self._lines:
                self._remove()

    def close(self, unwritten: Iterable[str]) -> set[str]:
        """Let go of the file; it stays if one of these requests has its row there. Those that had and have it no more,
        because the file was taken away and cannot be written again."""
        with self._one_at_a_time:
            left = set(unwritten)
            self._lines = {request_id: line for request_id, line in self._lines.items() if request_id in left}
            if not self._lines:
                self._remove()
                return set()
            try:
                self._put({})
            except OSError as error:
                log.error("the journal %s cannot be written again: %s", self._path, error)
                return set(self._lines)
            finally:
                self._let_go()
            return set()

    def _put(self, lines: dict[str, bytes]) -> None:
        """After what is there, and with it where the file is new."""
        if self._fd is not None and not self._is_whole(self._fd):
            log.error("the journal %s was removed or cut short by another process; it is written again", self._path)
            self._let_go()
        fd = self._open() if self._fd is None else self._fd
        data = b"".join(lines.values())
        if not self._num_bytes:
            data = _line({"database": self._database_name}) + b"".join(self._lines.values()) + data
        if data:
            self._write(fd, data)
        self._lines |= lines

    def _write(self, fd: int, data: bytes) -> None:
        try:
            written = os.pwrite(fd, data, self._num_bytes)
            if written < len(data):
                raise OSError(f"only {written} of {len(data)} bytes could be written")
            if self._fsync:
                os.fsync(fd)
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(fd, self._num_bytes)
            raise
        self._num_bytes += len(data)

    def _is_whole(self, fd: int) -> bool:
        """Under its name, and as long as it was."""
        try:
            named = self._path.lstat()
        except OSError:
            return False
        own = os.fstat(fd)
        return (named.st_dev, named.st_ino) == (own.st_dev, own.st_ino) and own.st_size >= self._num_bytes

    def _open(self) -> int:
        """Locked before it has a name that another start looks for."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._path = self._folder / f"rows-{uuid.uuid4().hex}.jsonl"
        unnamed = self._path.with_suffix(".new")
        fd = os.open(unnamed, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            unnamed.rename(self._path)
            if self._fsync:
                _fsync_folder(self._folder)
        except OSError:
            os.close(fd)
            unnamed.unlink(missing_ok=True)
            raise
        self._fd, self._num_bytes = fd, 0
        return fd

    def _remove(self) -> None:
        if self._fd is None:
            return
        if self._is_whole(self._fd):  # else its name is another file's
            with contextlib.suppress(OSError):
                self._path.unlink()
        self._let_go()

    def _let_go(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
        self._fd, self._num_bytes = None, 0


def check_journal_folder(folder: Path) -> None:
    """Raises JournalError if no row could be kept there."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise JournalError(f"{folder} cannot be written ({error.strerror})") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    num_rows: int = 0  # of journals, in the ledger now
    num_corrupt_lines: int = 0  # kept aside

    def __add__(self, other: Replayed) -> Replayed:
        return Replayed(
            num_rows=self.num_rows + other.num_rows,
            num_corrupt_lines=self.num_corrupt_lines + other.num_corrupt_lines,
        )


def replay_journals(folder: Path, database_name: str, connection: Connection) -> Replayed:
    """Put the rows of every journal that no living process holds into the database, and remove the journal.

    Raises DatabaseError; then what is not in the database is still in its journal.
    """
    done = Replayed()
    for path in sorted(folder.glob(_PATTERN)):
        try:
            with _locked(path) as fd:
                if fd is not None:
                    done += _replay(path, fd, database_name, connection)
        except (OSError, JournalError) as error:
            log.error("the journal %s cannot be read, its rows are not in the usage ledger: %s", path, error)
    return done


def _replay(path: Path, fd: int, database_name: str, connection: Connection) -> Replayed:
    content, corrupt = _read(fd)
    header = content.pop(0) if content and "database" in content[0] else None
    named = None if header is None else header["database"]
    if named not in (None, database_name):
        log.warning("%s holds %d rows of another database, %s; they stay there", path, len(content), named)
        return Replayed()
    by_request: dict[str, LedgerRow] = {}  # the last one wins
    for found in content:
        try:
            row = msgspec.convert(found, LedgerRow)
            is_storable = all(abs(value) <= MAX_STORED for value in asdict(row).values() if isinstance(value, int))
        except msgspec.ValidationError:
            is_storable = False
        if is_storable:
            by_request[row.request_id] = row
        else:
            corrupt.append(_line(found))
    rows = list(by_request.values())
    for start in range(0, len(rows), ROWS_PER_COMMIT):
        connection.write([insert_missing_rows(rows[start : start + ROWS_PER_COMMIT])])
    if corrupt:
        aside = path.with_suffix(".corrupt")
        aside_fd = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(aside_fd, "wb") as file:
            file.writelines(corrupt)
        log.error("%s had %d lines that cannot be read; they are kept in %s", path, len(corrupt), aside)
    path.unlink(missing_ok=True)
    log.warning("%d rows of the usage ledger came from %s", len(rows), path)
    return Replayed(num_rows=len(rows), num_corrupt_lines=len(corrupt))


def _read(fd: int) -> tuple[list[dict[str, object]], list[bytes]]:
    """Lines that are whole, and those that are not."""
    good: list[dict[str, object]] = []
    corrupt: list[bytes] = []
    with os.fdopen(os.dup(fd), "rb") as file:
        for line in file:
            found = _parsed(line)
            if found is None:
                corrupt.append(line)
            else:
                good.append(found)
    return good, corrupt


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[int | None]:
    """None: a living process holds it, or another start has just replayed it."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        yield None
        return
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise JournalError("it is no regular file")  # a pipe would never end
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield None
        else:
            yield fd if path.exists() else None
    finally:
        os.close(fd)


def _line(content: dict[str, object]) -> bytes:
    text = json.dumps(content, separators=(",", ":")).encode()
    return b"%08x %s\n" % (zlib.crc32(text), text)


def _parsed(line: bytes) -> dict[str, object] | None:
    checksum, separator, text = line.rstrip(b"\n").partition(b" ")
    if not separator or not line.endswith(b"\n") or b"%08x" % zlib.crc32(text) != checksum:
        return None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):  # the sum is right: it was written so
        return None
    return found if isinstance(found, dict) else None


def _fsync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
