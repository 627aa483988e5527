"""Runs what recurses deeply on a stack that is deep enough: a native library that overflows one ends the process.

Owns the size. Does not know the work; how deeply it may recurse is its caller's bound.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")

# Of addresses; memory is only what is used. Measured: llguidance takes 3 kB for each rule of a chain of rules.
STACK_BYTES = 128 * 2**20
_starting = threading.Lock()


def on_deep_stack(work: Callable[[], T]) -> T:
    """`work()`, in a thread of its own that the caller waits for. Raises what it raises."""
    done: Future[T] = Future()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:  # its own to handle: the caller's
            done.set_exception(error)

    thread = threading.Thread(target=run, name="deep-stack", daemon=True)
    with _starting:
        usual = threading.stack_size(STACK_BYTES)
        try:
            thread.start()
        finally:
            threading.stack_size(usual)
    return done.result()
