"""The HTTP side: sends one request, reads the whole answer, and can go away in the middle.

Knows nothing about checks. Bodies may be any bytes, since some checks send what no client library would.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self
from urllib.parse import urlsplit

import aiohttp

from relevo.check.exchange import KEY_PLACEHOLDER, Answer, Exchange, StreamAnswer
from relevo.check.words import Skip
from relevo.core.errors import SettingsError
from relevo.core.urls import normalise_url, with_plain_zone

JSON_HEADERS = {"Content-Type": "application/json"}
SEGMENT_PAUSE_S = 0.05  # arbitrary; long enough that two pieces are read apart


def _without_password(url: str) -> str:
    """Reports show URLs. Raises SettingsError."""
    if "@" in url.rpartition("://")[2].partition("/")[0]:
        raise SettingsError("the URL has a name or password before its host; give a key as --api-key instead")
    return url


@dataclass(slots=True)
class Server:
    """As an async context manager. `timeout_s` bounds every request as a whole."""

    url: str
    api_key: str | None = None
    timeout_s: float = 120.0
    key_placeholder: str = KEY_PLACEHOLDER
    _session: aiohttp.ClientSession | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        self.url = with_plain_zone(normalise_url(_without_password(self.url)))

    async def __aenter__(self) -> Self:
        connector = aiohttp.TCPConnector(limit=0, force_close=True)  # a request never meets another's connection
        timeout = aiohttp.ClientTimeout(total=self.timeout_s, sock_connect=10.0)
        self._session = aiohttp.ClientSession(connector=connector, timeout=timeout, auto_decompress=True)
        return self

    async def __aexit__(self, *unused: object) -> None:
        await self.session.close()

    @property
    def session(self) -> aiohttp.ClientSession:
        assert self._session is not None, "use Server as an async context manager"
        return self._session

    def exchange(self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None) -> Exchange:
        """What a request will be: JSON unless `headers` say otherwise, with the key if there is one.

        A header that is given empty is not sent, not even by default.
        """
        chosen = dict(JSON_HEADERS if body else {}) | dict(headers or {})
        has_own_key = "Authorization" in chosen
        if self.api_key is not None and not has_own_key:
            chosen["Authorization"] = f"Bearer {self.api_key}"
        shown = {name: value for name, value in chosen.items() if value}
        return Exchange(
            method=method,
            url=self.url + path,
            headers=shown,
            body=body,
            has_own_key=has_own_key,
            key_placeholder=self.key_placeholder,
        )

    async def send(self, exchange: Exchange) -> Answer:
        """The answer, whatever its status. Raises aiohttp.ClientError, TimeoutError."""
        started_s = time.monotonic()
        async with self._open(exchange) as response:
            raw = await response.read()
            return Answer(
                exchange=exchange,
                status=response.status,
                headers={name.lower(): value for name, value in response.headers.items()},
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
        async with self._open(exchange) as response:
            try:
                async for piece in response.content.iter_any():
                    pieces.append(piece)
                    ends.append(len(piece) + (ends[-1] if ends else 0))
                    at_s.append(time.monotonic() - started_s)
                    num_events += piece.count(b"data:")
                    if heard is not None and num_events > 1:
                        heard.set()
                    if max_events is not None and num_events >= max_events:
                        response.close()
                        return None
            except (aiohttp.ClientPayloadError, ConnectionError):
                was_cut = True
            return StreamAnswer(
                exchange=exchange,
                status=response.status,
                headers={name.lower(): value for name, value in response.headers.items()},
                raw=b"".join(pieces),
                duration_s=time.monotonic() - started_s,
                piece_ends=tuple(ends),
                piece_at_s=tuple(at_s),
                was_cut=was_cut,
            )

    async def abandon_after_events(self, exchange: Exchange, num_events: int) -> None:
        """Read a stream up to an event, then close the connection."""
        seen = b""
        async with self._open(exchange) as response:
            async for piece in response.content.iter_any():
                seen += piece
                if seen.count(b"data:") >= num_events:
                    break
            response.close()

    async def abandon_after_s(self, exchange: Exchange, delay_s: float) -> bool:
        """Close the connection after a time; False if the whole answer had come before."""
        try:
            async with asyncio.timeout(delay_s):
                await self.send(exchange)
        except TimeoutError:
            return True
        except (aiohttp.ClientError, ConnectionError):
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

    def _open(self, exchange: Exchange) -> aiohttp.client._RequestContextManager:
        return self.session.request(
            exchange.method, exchange.url, data=exchange.body or None, headers=exchange.headers, allow_redirects=False
        )
