"""Monotonic time that goes on while the machine is suspended: a lease must not outlive a sleep."""

from __future__ import annotations

import time


class BootClock:
    """Implements core.ports.Clock."""

    def now_ns(self) -> int:
        if hasattr(time, "CLOCK_BOOTTIME"):  # Linux
            return time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        return time.monotonic_ns()
