"""The server under check: sends one request, reads the whole answer, and can go away in the middle.

Knows nothing about checks. Bodies may be any bytes, since some checks send what no client library would.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from urllib.parse import urlsplit

from relevo.check.exchange import KEY_PLACEHOLDER, Answer, Exchange, StreamAnswer
from relevo.check.words import Skip
from relevo.client.http import ConnectionBroken
from relevo.client.server import OpenAIServer
from relevo.core.errors import SettingsError

SEGMENT_PAUSE_S = 0.05  # arbitrary; long enough that two pieces are read apart


def _without_password(url: str) -> str:
    """Reports show URLs. Raises SettingsError."""
    if "@" in url.rpartition("://")[2].partition("/")[0]:
        raise SettingsError("the URL has a name or password before its host; give a key as --api-key instead")
    return url


class Server(OpenAIServer):
    """As an async context manager. `timeout_s` bounds every request as a whole; none meets another's connection."""

    def __init__(
        self, url: str, api_key: str | None = None, timeout_s: float = 120.0, key_placeholder: str = KEY_PLACEHOLDER
    ) -> None:
        url = _without_password(url)
        super().__init__(url, api_key=api_key, request_timeout_s=timeout_s, reuse_connections=False)
        self.timeout_s = timeout_s
        self._key_placeholder = key_placeholder

    def exchange(self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None) -> Exchange:
        """What a request will be, and how a report shows it."""
        return Exchange(
            request=self.request(method, path, body, headers),
            has_own_key="Authorization" in (headers or {}),
            key_placeholder=self._key_placeholder,
        )

    async def send(self, exchange: Exchange) -> Answer:
        """The answer, whatever its status. Raises `client.http.CLIENT_ERRORS`."""
        started_s = time.monotonic()
        async with self.open(exchange.request) as response:
            raw = await response.read()
            return Answer(
                exchange=exchange,
                status=response.status,
                headers=response.headers,
                raw=raw,
                duration_s=time.monotonic() - started_s,
            )

    async def stream(
        self, exchange: Exchange, heard: asyncio.Event | None = None, max_events: int | None = None
    ) -> StreamAnswer | None:
        """As `send`, keeping arrival times; a broken connection ends the answer. `heard` is set by the first text.

        None: there were `max_events` events, and the connection was closed.
        """
        started_s = time.monotonic()
        pieces: list[bytes] = []
        ends: list[int] = []
        at_s: list[float] = []
        was_cut = False
        num_events = 0  # about; only where it is enough to know that something came
        async with self.open(exchange.request) as response:
            try:
                async for piece in response.pieces():
                    pieces.append(piece)
                    ends.append(len(piece) + (ends[-1] if ends else 0))
                    at_s.append(time.monotonic() - started_s)
                    num_events += piece.count(b"data:")
                    if heard is not None and num_events > 1:
                        heard.set()
                    if max_events is not None and num_events >= max_events:
                        return None
            except ConnectionBroken:
                was_cut = True
            return StreamAnswer(
                exchange=exchange,
                status=response.status,
                headers=response.headers,
                raw=b"".join(pieces),
                duration_s=time.monotonic() - started_s,
                piece_ends=tuple(ends),
                piece_at_s=tuple(at_s),
                was_cut=was_cut,
            )

    async def abandon_after_events(self, exchange: Exchange, num_events: int) -> None:
        """Read a stream up to an event, then close the connection."""
        await self.stream(exchange, max_events=num_events)

    async def abandon_after_s(self, exchange: Exchange, delay_s: float) -> bool:
        """Close the connection after a time; False if the whole answer had come before."""
        try:
            async with asyncio.timeout(delay_s):
                await self.send(exchange)
        except TimeoutError:
            return True
        except ConnectionBroken:
            return False
        return False

    async def raw(self, *pieces: bytes, quiet_s: float = 1.0) -> bytes:
        """Send bytes as they are, each piece in a segment of its own; what comes back until the server closes the
        connection, or says nothing more for `quiet_s` after it has said something. Raises Skip over https."""
        reader, writer = await self.connect()
        found = b""
        try:
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(SEGMENT_PAUSE_S)
            async with asyncio.timeout(self.timeout_s):
                while True:
                    async with asyncio.timeout(quiet_s if found else None):
                        read = await reader.read(2**16)
                    if not read:
                        return found
                    found += read
        except (ConnectionError, TimeoutError):
            if not found:
                raise
            return found
        finally:
            writer.transport.abort()

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection on which nothing was said yet. Raises Skip over https."""
        parts = urlsplit(self.url)
        if parts.scheme != "http" or parts.hostname is None:
            raise Skip("raw bytes are sent over http only")
        return await asyncio.wait_for(asyncio.open_connection(parts.hostname, parts.port or 80), 10.0)
