"""Files in which what was served is kept, line by line: bounded together, the oldest goes first.

Owns one folder's files and the thread that writes; who puts something in never waits for a disk. Rows are made in the
thread too. What does not get there (a full disk, more than can wait) is lost, counted and said: no bill depends on it.
Several processes may write into one folder, each into files of its own. Knows no requests.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from queue import Empty, Full, Queue
from typing import Any, BinaryIO

log = logging.getLogger("relevo.planner")

PATTERN = "traffic-*.jsonl"
LEAST_BYTES = 2**20  # of all files; arbitrary
_NUM_FILES = 8  # that share the room: of a full folder the oldest eighth goes. Arbitrary
_MAX_WAITING = 2_000  # rows, with the tokens they are made of; arbitrary
_FLUSH_S = 1.0
_RETRY_S = 30.0  # after the folder could not be written. Arbitrary

MakeRow = Callable[[], Mapping[str, Any]]


class TrafficLog:
    def __init__(self, folder: Path, max_bytes: int, *, unix_s: Callable[[], float] = time.time) -> None:
        self._folder = folder
        self._max_bytes = max_bytes
        self._unix_s = unix_s
        self._waiting: Queue[MakeRow | None] = Queue(_MAX_WAITING)
        self._file: BinaryIO | None = None
        self._path = folder
        self._num_bytes = 0  # in the file
        self._idle_until_s = 0.0
        self.num_lost = 0
        self._thread: threading.Thread | None = None

    def put(self, make: MakeRow) -> None:
        """Waits for nothing."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="traffic-log", daemon=True)
            self._thread.start()
        try:
            self._waiting.put_nowait(make)
        except Full:
            self._lose("more rows wait than can be kept")

    def close(self, timeout_s: float) -> None:
        """What waits is written, if that takes no longer."""
        if self._thread is not None:
            with contextlib.suppress(Full):
                self._waiting.put(None, timeout=timeout_s)
            self._thread.join(timeout_s)

    def _run(self) -> None:
        while True:
            try:
                make = self._waiting.get(timeout=_FLUSH_S)
            except Empty:
                self._flush()
                continue
            if make is None:
                self._let_go()
                return
            try:
                self._write(json.dumps(make(), separators=(",", ":")).encode() + b"\n")
            except OSError as error:
                self._let_go()
                self._idle_until_s = time.monotonic() + _RETRY_S
                self._lose(f"{error}; tried again in {_RETRY_S:.0f} s")
            except Exception:
                log.exception("a row of the traffic log could not be made")

    def _write(self, line: bytes) -> None:
        if time.monotonic() < self._idle_until_s:
            self.num_lost += 1
            return
        if self._file is None or self._num_bytes + len(line) > self._max_bytes // _NUM_FILES:
            self._next_file()
        assert self._file is not None
        self._file.write(line)
        self._num_bytes += len(line)

    def _next_file(self) -> None:
        """Readable by its owner alone. Names follow one another in time."""
        self._let_go()
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._make_room()
        self._path = self._folder / f"traffic-{round(self._unix_s() * 1e3):013d}-{secrets.token_hex(4)}.jsonl"
        fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        self._file, self._num_bytes = os.fdopen(fd, "wb"), 0

    def _make_room(self) -> None:
        """For a whole file more."""
        sizes = []
        for path in sorted(self._folder.glob(PATTERN)):
            with contextlib.suppress(OSError):  # another process was first
                sizes.append((path, path.lstat().st_size))
        left = sum(size for _, size in sizes) - self._max_bytes * (_NUM_FILES - 1) // _NUM_FILES
        for path, size in sizes:
            if left <= 0:
                return
            path.unlink(missing_ok=True)
            left -= size

    def _flush(self) -> None:
        """What was written can be read; a file that another process removed is let go."""
        if self._file is None:
            return
        try:
            self._file.flush()
        except OSError as error:
            self._let_go()
            self._lose(str(error))
            return
        if not self._path.exists():
            self._let_go()

    def _let_go(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()
            self._file = None

    def _lose(self, why: str) -> None:
        """Said once for a thousand of them."""
        if self.num_lost % 1000 == 0:
            log.warning("the traffic log in %s does not take a request: %s", self._folder, why)
        self.num_lost += 1
