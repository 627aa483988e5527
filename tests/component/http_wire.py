"""One HTTP connection without a network: bytes in, bytes out, on a clock that a test moves."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass, field
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

from relevo.gateway.http.connection import HttpConnection
from relevo.gateway.http.connection_limiter import ConnectionLimiter
from relevo.gateway.http.errors import ErrorFormats
from relevo.gateway.openai.errors import OPENAI_ERRORS
from relevo.policy.http.connections import ConnectionLimits


class Wire(asyncio.Transport):
    """What the server writes. `is_stuck`: the client reads nothing."""

    def __init__(self, peer: tuple[str, int]) -> None:
        super().__init__({"peername": peer, "sockname": ("127.0.0.1", 80)})
        self.written = b""
        self.unread = 0
        self.is_stuck = False
        self.is_read = True
        self.ended = ""  # "close", "abort"
        self.half_closed = False
        self.protocol: HttpConnection | None = None

    def write(self, data: Any) -> None:
        if self.ended:
            return
        self.written += bytes(data)
        if self.is_stuck:
            self.unread += len(data)
            if self.unread > 2**16 and self.protocol is not None and not self.protocol.is_write_paused:
                self.protocol.pause_writing()

    def get_write_buffer_size(self) -> int:
        return self.unread

    def close(self) -> None:
        self.ended = self.ended or "close"

    def abort(self) -> None:
        self.ended = "abort"

    def is_closing(self) -> bool:
        return bool(self.ended)

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.half_closed = True

    def pause_reading(self) -> None:
        self.is_read = False

    def resume_reading(self) -> None:
        self.is_read = True


@dataclass
class HandClock:
    """Moves by hand."""

    at_ns: int = 0

    def now_ns(self) -> int:
        return self.at_ns

    def pass_s(self, seconds: float) -> None:
        self.at_ns += int(seconds * 1e9)


@dataclass
class Counts:
    """What the limiter told its metrics."""

    num_open: int = 0
    refused: list[str] = field(default_factory=list)
    timed_out: list[str] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)

    def connections_open(self, num_open: int) -> None:
        self.num_open = num_open

    def connection_refused(self, reason: str) -> None:
        self.refused.append(reason)

    def connection_timed_out(self, waited_for: str) -> None:
        self.timed_out.append(waited_for)

    def http_response(self, handler: str, method: str, status: int) -> None:
        self.statuses.append(status)


LIMITS = ConnectionLimits(max_connections=8, max_per_address=4)


class Rig:
    """A limiter and its connections."""

    def __init__(
        self,
        app: ASGIApp,
        limits: ConnectionLimits = LIMITS,
        error_formats: ErrorFormats = lambda path: OPENAI_ERRORS,
    ) -> None:
        self.clock = HandClock()
        self.counts = Counts()
        self.limiter = ConnectionLimiter(app, limits, self.clock, error_formats, self.counts)

    def open(self, address: str = "192.0.2.1") -> tuple[HttpConnection, Wire]:
        """Raises AssertionError if it is refused."""
        connection = self.limiter.admit(address)
        assert isinstance(connection, HttpConnection), connection
        wire = Wire((address, 4711))
        wire.protocol = connection
        connection.connection_made(wire)
        return connection, wire

    def pass_s(self, seconds: float) -> None:
        self.clock.pass_s(seconds)
        self.limiter.sweep()

    async def settle(self) -> None:
        """Until everything that can go on without the client has."""
        for _ in range(20):
            await asyncio.sleep(0)

    async def say(self, *parts: bytes) -> Wire:
        connection, wire = self.open()
        for part in parts:
            connection.data_received(part)
        await self.settle()
        return wire

    async def statuses(self, *parts: bytes) -> list[int]:
        return statuses((await self.say(*parts)).written)


def statuses(written: bytes) -> list[int]:
    return [int(found) for found in re.findall(rb"HTTP/1\.1 (\d{3})", written)]


@dataclass
class Told:
    """One request as the application saw it."""

    method: str
    path: str
    version: str
    headers: list[tuple[bytes, bytes]]
    body: bytes


class Echo:
    """Answers every request with its path, after it has come whole; keeps what it saw."""

    def __init__(self) -> None:
        self.told: list[Told] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body += message["body"]
            more = message["more_body"]
        self.told.append(Told(scope["method"], scope["path"], scope["http_version"], scope["headers"], body))
        said = scope["path"].encode()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(said))]})
        await send({"type": "http.response.body", "body": said})
