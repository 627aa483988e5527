"""From the dispatcher to the one reader of a request: items in order, put without waiting.

An `asyncio.Queue` does the same at three times the cost per item, and every token of every stream is one. Bounded by
what is put in: a request's tokens are, so a client that reads slowly holds up nobody else and costs no more than them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class Outbox(Generic[T]):
    """For one event loop and one reader."""

    __slots__ = ("_items", "_reader")

    def __init__(self) -> None:
        self._items: deque[T] = deque()
        self._reader: asyncio.Future[None] | None = None

    def put(self, item: T) -> None:
        self._items.append(item)
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    async def take(self) -> T:
        """The oldest item; waits until there is one."""
        while not self._items:
            self._reader = asyncio.get_running_loop().create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        return self._items.popleft()
