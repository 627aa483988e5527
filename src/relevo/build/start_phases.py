"""Where the time of a start goes: one line per process, counted from when the kernel started it.

Beside wall time the CPU time of the process: a server's processes start side by side on the same cores, so what one of
them computes the others wait for.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

_STARTED_FIELD = 22  # of /proc/self/stat, counted from 1: clock ticks since boot


class StartPhases:
    """Call `done(name)` at the end of each phase; `str` is the line for the log."""

    def __init__(self) -> None:
        self._started_s = _process_started_s()
        self._last_s = self._started_s
        self._phases: list[tuple[str, float]] = []
        self.done("interpreter and imports")

    def done(self, name: str) -> None:
        now_s = time.clock_gettime(time.CLOCK_BOOTTIME)
        self._phases.append((name, now_s - self._last_s))
        self._last_s = now_s

    def __str__(self) -> str:
        parts = ", ".join(f"{name} {seconds:.2f}" for name, seconds in self._phases)
        return f"started in {self._last_s - self._started_s:.2f} s, {time.process_time():.2f} s of CPU: {parts}"


def _process_started_s() -> float:
    """Seconds since boot. Now, where the system does not tell."""
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()  # from the third field on
    except OSError:
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return int(fields[_STARTED_FIELD - 3]) / os.sysconf("SC_CLK_TCK")
