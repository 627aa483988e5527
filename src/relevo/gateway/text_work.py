"""Work on long texts away from the event loop: chat templates, tokenizing, decoding.

Owns the threads and the bound on how many texts wait for one. Does not know what the work is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from relevo.core.errors import Overloaded

T = TypeVar("T")

INLINE_BYTES = 8 * 1024  # arbitrary: work on shorter texts stays in the event loop, a thread would cost more
NUM_THREADS = 4  # arbitrary: tokenizers release the interpreter, templates do not
MAX_WAITING = 256  # arbitrary; texts beyond those at work


class TextWork:
    def __init__(self, num_threads: int = NUM_THREADS, max_waiting: int = MAX_WAITING) -> None:
        self._threads = ThreadPoolExecutor(num_threads, thread_name_prefix="text")  # started when first needed
        self._max_unfinished = num_threads + max_waiting
        self._num_unfinished = 0

    async def run(self, num_bytes: int, work: Callable[[], T]) -> T:
        """`work()`, whose cost grows with `num_bytes` of text. Raises Overloaded if too many texts wait."""
        if num_bytes <= INLINE_BYTES:
            return work()
        if self._num_unfinished >= self._max_unfinished:
            raise Overloaded(f"{self._num_unfinished} long texts wait to be read already, which is the limit.")
        self._num_unfinished += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        finally:
            self._num_unfinished -= 1
