"""Log lines that a stranger can cause: at most one per kind and interval, and how many were left out since.

The log bounds what any place in the code may write (telemetry.log), by the same rule; here one place tells kinds apart,
and a flood of one leaves room for a line of another. Owns the interval. Thread-safe. Callers count events themselves: a
metric shows each, the log shows that there are some.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from relevo.policy.http.log_limit import LogLimit

LINE_INTERVAL_S = 10.0  # arbitrary: seen soon by a person, and 8,640 lines a day at most


@dataclass(slots=True)
class LimitedLog:
    """`kind` comes from a short list, or from names that are few."""

    logger: logging.Logger
    now_ns: Callable[[], int] = time.monotonic_ns
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _limit: LogLimit = field(default_factory=lambda: LogLimit(1, 1 / LINE_INTERVAL_S))

    def warning(self, kind: str, message: str) -> None:
        self._write(logging.WARNING, kind, message, with_traceback=False)

    def failure(self, kind: str, message: str) -> None:
        """With the traceback of the exception that is being handled."""
        self._write(logging.ERROR, kind, message, with_traceback=True)

    def _write(self, level: int, kind: str, message: str, *, with_traceback: bool) -> None:
        with self._lock:
            num_left_out = self._limit.admit(kind, self.now_ns())
        if num_left_out is not None:
            more = f" ({num_left_out} more since the last such line)" if num_left_out else ""
            self.logger.log(level, "%s%s", message, more, stacklevel=3, exc_info=with_traceback)
