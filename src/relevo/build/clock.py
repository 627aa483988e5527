"""The clock of every process."""

from __future__ import annotations

import time


class MonotonicClock:
    """CLOCK_MONOTONIC: one time for all processes of a box."""

    def now_ns(self) -> int:
        return time.monotonic_ns()
