"""An asyncio event loop on virtual time: nothing waits, the clock jumps to the next timer."""

from __future__ import annotations

import asyncio
import selectors
from typing import Any


class _JumpingSelector(selectors.SelectSelector):
    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        assert timeout is not None, "everybody waits and no timer is set: the world has come to a halt"
        if timeout > 0:
            self.now_s += timeout + 1e-9  # past the timer, however the sum was rounded
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """`time()` begins at 0 s. Sockets, threads and signals are never served."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now_s

    def now_ns(self) -> int:
        """core.ports.Clock."""
        return round(self._jumping.now_s * 1e9)


def run_virtually(loop: VirtualLoop, main: Any) -> Any:
    """As asyncio.run, on `loop`."""
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        return runner.run(main)
