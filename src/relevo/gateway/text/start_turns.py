"""New requests enter one per turn of the event loop, so that tokens of running streams pass between them.

What a request costs before it runs (parsing, tokenizing, routing) is done in one piece. Without this, all that arrive
together would be worked on in one turn, and every running stream would wait for all of them; with it, a stream waits
for one in each of the few turns that its token takes. Does not know what a request is.
"""

from __future__ import annotations

import asyncio
from collections import deque


class StartTurns:
    """For one event loop. Requests enter in the order in which they come; one that comes alone does not wait."""

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._is_taken = False  # a request has entered in this turn

    async def enter(self) -> None:
        if not self._is_taken:
            self._is_taken = True
            asyncio.get_running_loop().call_soon(self._turn)
            return
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        await waiter

    def _turn(self) -> None:
        self._is_taken = False
        while self._waiting and not self._is_taken:
            waiter = self._waiting.popleft()
            if not waiter.done():  # else it has given up
                waiter.set_result(None)
                self._is_taken = True
        if self._is_taken:
            asyncio.get_running_loop().call_soon(self._turn)
