"""Lines on their way to a file descriptor that may not be read: the writer of a line never waits for the reader.

Owns a bounded queue and the thread that empties it. Lines that do not fit are dropped and counted; when the reader
goes on, one line says how many. Standard library only. Safe to use from any thread.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
from collections import deque
from collections.abc import Callable

MAX_WAITING_BYTES = 2**20  # arbitrary: some ten thousand lines


class LineSink:
    def __init__(self, fd: int, tell_dropped: Callable[[int], str], max_waiting_bytes: int = MAX_WAITING_BYTES) -> None:
        """`tell_dropped`: the line for so many lines that were dropped."""
        self._fd = fd
        self._tell_dropped = tell_dropped
        self._max_waiting_bytes = max_waiting_bytes
        self._changed = threading.Condition()
        self._lines: deque[bytes] = deque()
        self._num_waiting_bytes = 0  # in the queue, or being written
        self._num_untold = 0
        self._thread: threading.Thread | None = None

    def put(self, line: str) -> bool:
        """Write it soon. False: it was dropped, because too much waits already."""
        data = f"{line}\n".encode(errors="backslashreplace")
        with self._changed:
            if self._num_waiting_bytes and self._num_waiting_bytes + len(data) > self._max_waiting_bytes:
                self._num_untold += 1
                return False
            self._lines.append(data)
            self._num_waiting_bytes += len(data)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="log", daemon=True)
                self._thread.start()
            self._changed.notify_all()
            return True

    def flush(self, timeout_s: float) -> bool:
        """Wait until all is written, as long as that. False: it is not."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._num_waiting_bytes, timeout_s)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._lines)
                taken = list(self._lines)
                self._lines.clear()
            self._write(b"".join(taken))
            with self._changed:
                self._num_waiting_bytes -= sum(map(len, taken))
                if self._num_untold:
                    told = f"{self._tell_dropped(self._num_untold)}\n".encode(errors="backslashreplace")
                    self._num_untold = 0
                    self._lines.append(told)
                    self._num_waiting_bytes += len(told)
                self._changed.notify_all()

    def _write(self, data: bytes) -> None:
        """Waits for the reader. A descriptor that is closed takes nothing any more."""
        with contextlib.suppress(OSError):
            while data:
                try:
                    data = data[os.write(self._fd, data) :]
                except BlockingIOError:  # a process that shares the descriptor has made it so
                    poll = select.poll()
                    poll.register(self._fd, select.POLLOUT)
                    poll.poll()
