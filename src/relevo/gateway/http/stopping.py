"""The end of a gateway as its calls see it: draining (no new request is taken), then cut (every answer ends now).

Owns both moments and the calls that are open. Does not know signals, the server or what an answer is.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from relevo.core.errors import ServerStopping

_STOPPING = "This server is being stopped; send the request again, to another server or in a moment."
_CUT = "This server was stopped before the answer was complete; send the request again."


class CutOff(Exception):
    """The server stops: the answer that runs has to end."""


@dataclass(slots=True)
class Answering:
    """One answer that runs. `cut` is done when it has to end."""

    cut: asyncio.Future[None]
    is_complete: bool = False  # nothing is generated any more; its end waits for its row only, and is not cut


class Stopping:
    """For one event loop."""

    def __init__(self) -> None:
        self.is_draining = False
        self.is_cut = False
        self._num_calls = 0
        self._answers: dict[int, Answering] = {}
        self._changed = asyncio.Event()
        self._on_drain: dict[Callable[[], None], None] = {}

    def drain(self) -> None:
        """From now on requests are refused; those that run go on."""
        self.is_draining = True
        self._changed.set()
        self._tell()

    def when_draining(self, callback: Callable[[], None]) -> None:
        """Called once no new request is taken; at once if that is so. The same callback is called once."""
        self._on_drain[callback] = None
        if self.is_draining:
            self._tell()

    def _tell(self) -> None:
        for callback in tuple(self._on_drain):
            callback()
        self._on_drain.clear()

    def cut(self) -> None:
        """Every answer that runs ends now, with its last event."""
        self.is_draining = self.is_cut = True
        self._changed.set()
        self._tell()
        for answering in self._answers.values():
            if not answering.cut.done():
                answering.cut.set_result(None)

    def check(self) -> None:
        """Raises ServerStopping once no new request is taken."""
        if self.is_draining:
            raise ServerStopping(_STOPPING)

    @contextlib.contextmanager
    def call(self) -> Iterator[None]:
        """Around one HTTP call, so that the end waits for it."""
        self._num_calls += 1
        try:
            yield
        finally:
            self._num_calls -= 1
            self._changed.set()

    @contextlib.contextmanager
    def answer(self) -> Iterator[Answering]:
        """Around one answer. Raises ServerStopping after the cut."""
        if self.is_cut:
            raise ServerStopping(_CUT)
        answering = Answering(asyncio.get_running_loop().create_future())
        self._answers[id(answering)] = answering
        try:
            yield answering
        finally:
            del self._answers[id(answering)]
            answering.cut.cancel()

    async def until_draining(self) -> None:
        while not self.is_draining:
            await self._next_change()

    async def until_idle_or_cut(self) -> None:
        """Until no call is open, or answers have to end."""
        while self._num_calls and not self.is_cut:
            await self._next_change()

    async def until_idle(self) -> None:
        while self._num_calls:
            await self._next_change()

    async def _next_change(self) -> None:
        self._changed.clear()
        await self._changed.wait()


def cut_error() -> ServerStopping:
    """What the client of an answer that was cut is told."""
    return ServerStopping(_CUT)
