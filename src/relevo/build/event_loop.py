"""The event loop of what speaks HTTP (gateway, edge, load generators): uvloop's where it is installed.

It costs them less than asyncio's. uvicorn's own setting would be of no use here: it only counts for loops that uvicorn
makes itself. Its timers, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from relevo.core.ports import Clock


def run_until_complete(main: Coroutine[Any, Any, None]) -> None:
    """`asyncio.run` on the fastest loop that is installed."""
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(main)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:  # no wheel for this platform
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


class LoopTimers:
    """core.ports.Timers of the event loop that runs."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def call_at(self, at_ns: int, callback: Callable[[], None]) -> asyncio.TimerHandle:
        delay_s = max(0.0, (at_ns - self._clock.now_ns()) / 1e9)
        return asyncio.get_running_loop().call_later(delay_s, callback)
