"""The seam between metering and the database it keeps its rows in, and the implementation over SQLite.

Statements are portable SQL with `:name` parameters; values are text and integers only, so that nothing is rounded on
its way. A connection may be used by several threads, one at a time. Implementations: SQLite here, everything else in
`sql_alchemy`; tests/contract runs one suite on all of them.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

Value = str | int | None
Parameters = Mapping[str, Value]
Statement = tuple[str, Sequence[Parameters]]  # SQL, carried out once per parameters; none of them: once
Row = tuple[Value, ...]

BUSY_TIMEOUT_S = 5.0  # how long SQLite waits for another process that writes; arbitrary


class DatabaseError(Exception):
    """A statement could not be carried out; nothing of its transaction was kept. The message is for the operator."""


class Connection(Protocol):
    def write(self, statements: Sequence[Statement]) -> None:
        """All of them or none, kept when this returns. Raises DatabaseError; then it is unknown whether they were."""
        ...

    def read(self, sql: str, parameters: Parameters | None = None) -> list[Row]:
        """Raises DatabaseError."""
        ...

    def close(self) -> None: ...


class Database(Protocol):
    name: str  # for people; without credentials

    def connect(self) -> Connection:
        """Raises DatabaseError."""
        ...


def name_within(folder: Path, database_name: str) -> str:
    """What files in `folder` call a database: one that lies there too by its own name, so that the folder may be moved,
    or reached by another path."""
    path = Path(database_name)
    return path.name if path.parent == folder else database_name


class SqliteDatabase:
    """One file in WAL mode. A commit survives the death of every process; with `fsync` also a power cut."""

    def __init__(self, path: Path, *, fsync: bool = False) -> None:
        self.name = str(path)
        self._path = path
        self._fsync = fsync

    def connect(self) -> SqliteConnection:
        try:
            _close_to_others(self._path)
            connection = _open(str(self._path))
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute(f"PRAGMA synchronous = {'FULL' if self._fsync else 'NORMAL'}")
            return SqliteConnection(connection, place=Place(self._path))
        except (sqlite3.Error, OSError) as error:
            raise DatabaseError(f"{self._path}: {error}") from error


class MemoryDatabase:
    """Gone with the process. Every `connect` is the same connection."""

    name = "memory"

    def __init__(self) -> None:
        self._connection = SqliteConnection(_open(":memory:"), keep_open=True)

    def connect(self) -> SqliteConnection:
        return self._connection


class Place:
    """The file that has a path's name: is it still the one that was opened?

    A connection goes on with a file that was removed or replaced: keys revoked in the new file would go on working, and
    rows would be lost with the old one. It cannot simply open the new one either: SQLite names the write-ahead log
    after the path, so two files under one name destroy each other. What helps is a new start.
    """

    def __init__(self, path: Path) -> None:
        """Raises OSError."""
        self._path = path
        found = path.stat()
        self._identity = (found.st_dev, found.st_ino)

    def check(self) -> None:
        """Raises DatabaseError."""
        if what := self.why_not():
            raise DatabaseError(f"{self._path} {what}; put the file back that was there, or start the server again")

    def why_not(self) -> str:
        try:
            found = self._path.stat()
        except FileNotFoundError:
            return "was removed while it was in use"
        except OSError as error:
            return f"cannot be looked at ({error.strerror})"
        is_same = (found.st_dev, found.st_ino) == self._identity
        return "" if is_same else "was replaced by another file while it was in use"


class SqliteConnection:
    def __init__(self, connection: sqlite3.Connection, *, keep_open: bool = False, place: Place | None = None) -> None:
        """`place`: None: there is no file."""
        self._connection = connection
        self._keep_open = keep_open
        self._place = place
        self._one_at_a_time = threading.Lock()

    def write(self, statements: Sequence[Statement]) -> None:
        with self._using():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                for sql, parameters in statements:
                    if parameters:
                        self._connection.executemany(sql, parameters)
                    else:
                        self._connection.execute(sql)
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise

    def read(self, sql: str, parameters: Parameters | None = None) -> list[Row]:
        with self._using():
            return self._connection.execute(sql, parameters or {}).fetchall()

    def close(self) -> None:
        if self._keep_open:
            return
        if self._place is not None and self._place.why_not():
            # closing removes the write-ahead log by name, and that is another file's now
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._connection))
            return
        with self._one_at_a_time:
            self._connection.close()

    @contextlib.contextmanager
    def _using(self) -> Iterator[None]:
        with self._one_at_a_time:
            if self._place is not None:
                self._place.check()
            try:
                yield
            except (sqlite3.Error, OverflowError) as error:
                raise DatabaseError(str(error)) from error
            if self._place is not None:
                self._place.check()  # else what was written may be in a file that is gone


def _close_to_others(path: Path) -> None:
    """Who uses how much is the owner's business alone: the file is there, and was never open to others, before SQLite
    opens it; SQLite gives what it puts beside it the same mode."""
    if not path.parent.exists():
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.parent.chmod(0o700)  # under a umask that takes the owner's rights
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600))
    for name in (path.name, f"{path.name}-wal", f"{path.name}-shm"):
        with contextlib.suppress(OSError):  # not there, or another user's whose group we are in
            path.with_name(name).chmod(0o600)


def _open(name: str) -> sqlite3.Connection:
    return sqlite3.connect(name, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)
