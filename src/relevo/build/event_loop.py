"""The event loop of what speaks HTTP (gateway, edge, load generators): uvloop's where it is installed.

It costs them less than asyncio's. uvicorn's own setting would be of no use here: it only counts for loops that uvicorn
makes itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


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
