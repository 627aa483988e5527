"""Log lines that a stranger can cause: at most one per kind and interval, and how many were left out since.

The log bounds what any place in the code may write (telemetry.log); here one place tells kinds apart, and a flood of
one leaves room for a line of another. Owns the interval. Thread-safe. Callers count events themselves: a metric shows
each, the log shows that there are some.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

LINE_INTERVAL_S = 10.0  # arbitrary: seen soon by a person, and 8,640 lines a day at most


@dataclass(slots=True)
class LimitedLog:
    """`kind` comes from a short fixed list: each is remembered."""

    logger: logging.Logger
    now_s: Callable[[], float] = time.monotonic
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _last_s: dict[str, float] = field(default_factory=dict)
    _num_left_out: dict[str, int] = field(default_factory=dict)

    def warning(self, kind: str, message: str) -> None:
        with self._lock:
            now_s = self.now_s()
            if now_s - self._last_s.get(kind, -LINE_INTERVAL_S) < LINE_INTERVAL_S:
                self._num_left_out[kind] = self._num_left_out.get(kind, 0) + 1
                return
            self._last_s[kind] = now_s
            num_left_out = self._num_left_out.pop(kind, 0)
        more = f" ({num_left_out} more since the last such line)" if num_left_out else ""
        self.logger.warning("%s%s", message, more, stacklevel=2)
