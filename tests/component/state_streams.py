"""Clients of GET /v1/state/stream over ASGI: they read, or do not, or go; and time that passes when it is told to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
from starlette.types import ASGIApp

from relevo.gateway.console.state import State
from relevo.gateway.http.sse import WRITE_NOW


async def until(holds: Callable[[], bool]) -> None:
    """After as many turns of the event loop as it takes."""
    while not holds():  # noqa: ASYNC110
        await asyncio.sleep(0)


@dataclass
class Seconds:
    """An `Audience.pause`: each ends when `pass_one` is called."""

    num_begun: int = 0
    _turn: asyncio.Event = field(default_factory=asyncio.Event)
    _begun: asyncio.Event = field(default_factory=asyncio.Event)

    async def pause(self, _: float) -> None:
        self.num_begun += 1
        self._begun.set()
        try:
            await self._turn.wait()
        finally:
            self._begun.clear()
            self._turn.clear()

    async def pass_one(self) -> None:
        """Return once the events of the next second were offered."""
        await self.until_paused()
        num_begun = self.num_begun
        self._turn.set()
        await until(lambda: self.num_begun > num_begun)

    async def until_paused(self) -> None:
        await self._begun.wait()


@dataclass
class StreamClient:
    """`can_write_now`: its connection takes events at once while it reads; else each is awaited."""

    app: ASGIApp
    headers: dict[str, str] = field(default_factory=dict)
    can_write_now: bool = True
    method: str = "GET"
    status: int = 0
    response_headers: dict[str, str] = field(default_factory=dict)
    data: bytes = b""
    is_complete: bool = False  # the response came to its end
    reads: asyncio.Event = field(default_factory=asyncio.Event)
    _gone: asyncio.Event = field(default_factory=asyncio.Event)
    _began: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None

    async def open(self) -> StreamClient:
        """Return once it has a status."""
        self.reads.set()
        scope = {
            "type": "http",
            "method": self.method,
            "path": "/v1/state/stream",
            "query_string": b"",
            "headers": [(name.lower().encode(), value.encode()) for name, value in self.headers.items()],
            "extensions": {WRITE_NOW: self._write_now},
        }
        self.task = asyncio.create_task(self.app(scope, self._receive, self._send))  # type: ignore[arg-type]
        await self._began.wait()
        return self

    async def go(self) -> None:
        """Close the connection, and see the server's side of it end."""
        self._gone.set()
        await self.ended()

    async def ended(self) -> None:
        assert self.task is not None
        await self.task

    @property
    def events(self) -> list[dict[str, str]]:
        """Fields of each event."""
        blocks = self.data.decode().split("\n\n")[:-1]
        return [dict(line.split(": ", 1) for line in block.split("\n")) for block in blocks]

    @property
    def states(self) -> list[State]:
        return [msgspec.json.decode(event["data"], type=State) for event in self.events if "data" in event]

    def _write_now(self, data: bytes) -> bool:
        if not self.can_write_now or not self.reads.is_set():
            return False
        self.data += data
        return True

    async def _receive(self) -> dict[str, Any]:
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.response_headers = {name.decode().lower(): value.decode() for name, value in message["headers"]}
            return
        await self.reads.wait()
        self.data += message["body"]
        self.is_complete = not message.get("more_body", False)
        self._began.set()
