"""Work on long texts away from the event loop: JSON, chat templates, tokenizing, decoding.

Owns the threads, and who works on them when; in which order and how much at once is `policy.http.byte_line`'s. Does not
know what the work is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from relevo.core.errors import Overloaded
from relevo.policy.http.byte_line import ByteLimits, ByteLine

T = TypeVar("T")

INLINE_BYTES = 8 * 1024  # arbitrary: work on shorter texts stays in the event loop, a thread would cost more
NUM_THREADS = 4  # arbitrary: tokenizers release the interpreter, templates do not
LIMITS = ByteLimits(
    max_working_jobs=NUM_THREADS,
    max_working_bytes=2 * 2**20,  # arbitrary; measured: tokenizing takes up to 180 bytes of memory per byte
    max_waiting_jobs=256,  # arbitrary
    max_waiting_bytes=64 * 2**20,  # arbitrary
)


class TextWork:
    """For one event loop."""

    def __init__(self, limits: ByteLimits = LIMITS) -> None:
        self._threads = ThreadPoolExecutor(limits.max_working_jobs, thread_name_prefix="text")  # started when needed
        self._line: ByteLine[asyncio.Future[None]] = ByteLine(limits)

    async def run(self, num_bytes: int, work: Callable[[], T], tenant: str = "") -> T:
        """`work()`, whose cost grows with `num_bytes` of text. Raises Overloaded if too much text waits."""
        if num_bytes <= INLINE_BYTES:
            return work()
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        refusal = self._line.enter(turn, tenant, num_bytes)
        if refusal is not None:
            raise Overloaded(refusal)
        self._start()
        working: asyncio.Future[T] | None = None
        try:
            await turn
            working = loop.run_in_executor(self._threads, work)
            return await asyncio.shield(working)
        finally:
            if working is None or working.done():
                self._leave(turn)
            else:  # the caller is gone, the thread is not
                working.add_done_callback(lambda done: self._leave_after(turn, done))

    @property
    def num_waiting_bytes(self) -> int:
        return self._line.num_waiting_bytes

    @property
    def num_working_bytes(self) -> int:
        return self._line.num_working_bytes

    def _leave_after(self, turn: asyncio.Future[None], done: asyncio.Future[T]) -> None:
        if not done.cancelled():
            done.exception()  # its caller has gone, nothing reads it
        self._leave(turn)

    def _leave(self, turn: asyncio.Future[None]) -> None:
        self._line.leave(turn)
        self._start()

    def _start(self) -> None:
        while (turn := self._line.next()) is not None:
            if turn.done():  # its caller has been cancelled and leaves soon
                self._line.leave(turn)
            else:
                turn.set_result(None)
