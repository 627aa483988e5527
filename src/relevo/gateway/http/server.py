"""The HTTP server of a process: uvicorn's life (signals, draining, the Date header) around our own limiter.

uvicorn's own protocols are not used; docs/adr/0010 says why.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable

import uvicorn

from relevo.gateway.http.connection import HttpConnection
from relevo.gateway.http.connection_limiter import ConnectionLimiter
from relevo.gateway.http.listener import Listener
from relevo.gateway.http.tls import TlsContext, no_tls

LAST_REQUEST_S = 0.05  # arbitrary: far longer than from a connection to its request on a network at hand


class HttpServer(uvicorn.Server):
    """`handles_signals`: SIGTERM and SIGINT end it, after which uvicorn raises them again; otherwise `should_exit`.
    `at_end`: called once all connections are closed, and before a signal is raised again."""

    def __init__(
        self,
        limiter: ConnectionLimiter,
        *,
        shutdown_timeout_s: float,
        date_header: bool = True,
        handles_signals: bool = True,
        tls: TlsContext = no_tls,
        at_end: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(
            uvicorn.Config(
                limiter.app,
                http=HttpConnection,
                ws="none",
                lifespan="off",
                interface="asgi3",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                date_header=date_header,
                timeout_graceful_shutdown=int(shutdown_timeout_s),
            )
        )
        self.limiter = limiter
        self.tls = tls
        self._handles_signals = handles_signals
        self._at_end = at_end

    def capture_signals(self) -> contextlib.AbstractContextManager[None]:  # type: ignore[override]
        return super().capture_signals() if self._handles_signals else contextlib.nullcontext()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen. The sockets are given: they are bound and listening before anything else is started."""
        state = self.server_state
        state.connections = self.limiter.connections  # type: ignore[assignment]  # uvicorn only calls `shutdown` of them
        state.tasks = self.limiter.tasks
        listeners = [Listener(each, self.limiter, self.tls) for each in sockets or ()]
        self.servers = listeners  # type: ignore[assignment]  # uvicorn only closes them
        for listener in listeners:
            listener.start()
        self.started = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """A connection that was accepted just now has its request on the way: it is answered, not reset."""
        for listener in self.servers:
            listener.close()
        await asyncio.sleep(LAST_REQUEST_S)
        await super().shutdown(sockets)
        if self._at_end is not None:
            self._at_end()

    async def on_tick(self, counter: int) -> bool:
        should_exit = await super().on_tick(counter)
        self.limiter.default_headers = self.server_state.default_headers
        return should_exit
