"""A request's output as an async generator, for tests that wait: `orchestrator.ports.OutputSink` turned round."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator

from relevo.core.events import TokenOutput
from relevo.core.outcome import Cause, RequestEnd
from relevo.core.request import EngineRequest
from relevo.orchestrator.ports import RequestStarter

_GONE = RequestEnd(cause=Cause.CLIENT_GONE)


async def generate(starter: RequestStarter, request: EngineRequest) -> AsyncGenerator[TokenOutput, None]:
    """Yield outputs until every continuation has ended. Raises a `core.errors.RelevoError`, before the first output or
    later. Closing it early ends the request on every worker."""
    outbox = _Outbox()
    started = starter.start(request, outbox)
    try:
        while True:
            item = await outbox.take()
            if isinstance(item, RequestEnd):
                if item.code is not None:
                    raise item.error()
                return
            yield item
    finally:
        started.end(_GONE)


class _Outbox:
    """For one event loop and one reader."""

    __slots__ = ("_items", "_reader")

    def __init__(self) -> None:
        self._items: deque[TokenOutput | RequestEnd] = deque()
        self._reader: asyncio.Future[None] | None = None

    def on_output(self, output: TokenOutput) -> None:
        self._put(output)

    def on_end(self, end: RequestEnd) -> None:
        self._put(end)

    def _put(self, item: TokenOutput | RequestEnd) -> None:
        self._items.append(item)
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    async def take(self) -> TokenOutput | RequestEnd:
        """The oldest item; waits until there is one."""
        while not self._items:
            self._reader = asyncio.get_running_loop().create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        return self._items.popleft()
