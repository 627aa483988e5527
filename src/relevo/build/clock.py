"""The clock of every process, and the timers of one with an event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from relevo.core.ports import Clock


class MonotonicClock:
    """CLOCK_MONOTONIC: one time for all processes of a box."""

    def now_ns(self) -> int:
        return time.monotonic_ns()


class LoopTimers:
    """core.ports.Timers of the event loop that runs."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def call_at(self, at_ns: int, callback: Callable[[], None]) -> asyncio.TimerHandle:
        delay_s = max(0.0, (at_ns - self._clock.now_ns()) / 1e9)
        return asyncio.get_running_loop().call_later(delay_s, callback)
