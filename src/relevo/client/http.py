"""HTTP as a client of a server sees it: exactly what is sent, and what comes back, piece by piece.

Knows no API. Follows no redirect and retries nothing: either would hide what the server did. A connection that fails
is a ConnectionError, a time that is over a TimeoutError, whatever the library underneath calls it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import aiohttp

CONNECT_TIMEOUT_S = 10.0  # arbitrary


class ConnectionBroken(ConnectionError):
    """It ended before the answer was complete."""


class CannotConnect(ConnectionBroken):
    """There was no connection."""


CLIENT_ERRORS = (ConnectionError, TimeoutError)  # what a request can end with


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    method: str
    url: str
    headers: Mapping[str, str]
    body: bytes = b""


class Response:
    """Status and headers are there, the body comes."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self.status = response.status

    @property
    def headers(self) -> dict[str, str]:
        """By lower-case name."""
        return {name.lower(): value for name, value in self._response.headers.items()}

    async def read(self) -> bytes:
        with _told_as_connection_errors():
            return await self._response.read()

    async def pieces(self, max_bytes: int | None = None) -> AsyncIterator[bytes]:
        """As they arrive, or cut to so many bytes each."""
        content = self._response.content
        with _told_as_connection_errors():
            async for piece in content.iter_any() if max_bytes is None else content.iter_chunked(max_bytes):
                yield piece


class HttpClient:
    """Connections to servers, as an async context manager. Their number is unlimited: how much is sent is for others
    to decide."""

    def __init__(self, *, timeout_s: float | None, reuse_connections: bool, idle_s: float = 15.0) -> None:
        """`timeout_s` bounds every request as a whole. Without `reuse_connections` every request connects anew;
        otherwise a connection is kept for `idle_s`, which should be less than the server keeps it."""
        self._timeout_s = timeout_s
        self._idle_s = idle_s
        self._reuse_connections = reuse_connections
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        if self._reuse_connections:
            connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=self._idle_s)
        else:
            connector = aiohttp.TCPConnector(limit=0, force_close=True)
        self._session = aiohttp.ClientSession(connector=connector)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    @asynccontextmanager
    async def open(
        self, request: Request, *, timeout_s: float | None = None, silence_s: float | None = None
    ) -> AsyncIterator[Response]:
        """The answer from its head on; leaving early closes the connection. `timeout_s`: shorter than the client's;
        `silence_s`: between two pieces."""
        assert self._session is not None, "use it as an async context manager"
        if self._session.closed:
            raise CannotConnect("this client was closed")
        total_s = timeout_s or self._timeout_s
        timeout = aiohttp.ClientTimeout(total=total_s, sock_connect=CONNECT_TIMEOUT_S, sock_read=silence_s)
        with _told_as_connection_errors():
            response = await self._session.request(
                request.method,
                request.url,
                data=request.body or None,
                headers=request.headers,
                timeout=timeout,
                allow_redirects=False,
            )
        try:
            yield Response(response)
        finally:
            response.close()  # one that was read to its end has given its connection back already


@contextmanager
def _told_as_connection_errors() -> Iterator[None]:
    try:
        yield
    except TimeoutError:
        raise
    except aiohttp.ClientConnectorError as error:
        raise CannotConnect(str(error)) from error
    except (aiohttp.ClientError, ConnectionError) as error:
        raise ConnectionBroken(f"{type(error).__name__}: {error}".removesuffix(": ")) from error
