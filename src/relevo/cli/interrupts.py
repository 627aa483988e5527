"""Ctrl-C in a command that computes in the main thread: it is heard once no module is being imported.

An import that is interrupted may swallow the KeyboardInterrupt (compiled modules ignore what fails while they look for
their optional parts), so the command goes on as if nothing had been pressed; or it leaves half a module behind. What
runs in an event loop needs none of this: there Ctrl-C cancels a task between two callbacks.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_AGAIN_S = 0.01  # arbitrary: a person does not see it, and an import takes longer
_IMPORTS = ("importlib._bootstrap", "_frozen_importlib")  # its second name, before `importlib` is imported


@contextmanager
def interruptible() -> Iterator[None]:
    """Ctrl-C raises KeyboardInterrupt, also where it was ignored (as a shell leaves it for what runs in the
    background). Main thread only."""
    before = signal.signal(signal.SIGINT, _interrupt)
    before_alarm = signal.signal(signal.SIGALRM, _interrupt)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGINT, before)
        signal.signal(signal.SIGALRM, before_alarm)


def _interrupt(_number: int, frame: FrameType | None) -> None:
    while frame is not None:
        if frame.f_globals.get("__name__") in _IMPORTS:
            signal.setitimer(signal.ITIMER_REAL, _AGAIN_S)
            return
        frame = frame.f_back
    raise KeyboardInterrupt
