"""Accepts connections on a listening socket that other processes may share.

Owns accepting: it decides before a connection costs anything (a TLS handshake above all), so that a bound holds for
clients that never send a byte. Does not parse.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
import ssl

from relevo.gateway.http.connection import HttpConnection
from relevo.gateway.http.connection_limiter import FULL, ConnectionLimiter
from relevo.gateway.http.cycle import error_bytes
from relevo.gateway.http.tls import TlsContext, no_tls
from relevo.policy.http.connections import Refusal

log = logging.getLogger("relevo.http")

ACCEPTS_PER_TURN = 16  # arbitrary: other processes on the socket, and answers under way, get their turn
RETRY_S = 0.1  # arbitrary: after the system had no descriptor for a connection
_SCARCE = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))


class Listener:
    """Has what `uvicorn.Server` asks of a server: `close` and `wait_closed`."""

    def __init__(self, listening: socket.socket, limiter: ConnectionLimiter, tls: TlsContext = no_tls) -> None:
        self._socket = listening
        self._limiter = limiter
        self._tls = tls
        self._opening: set[asyncio.Task[None]] = set()
        self._retry: asyncio.TimerHandle | None = None
        self._goodbye = error_bytes(limiter.error_format(""), FULL)
        listening.setblocking(False)

    def start(self) -> None:
        self._retry = None
        asyncio.get_running_loop().add_reader(self._socket.fileno(), self._accept)

    def close(self) -> None:
        """Accept no more; what was accepted goes on."""
        if self._retry is not None:
            self._retry.cancel()
        asyncio.get_running_loop().remove_reader(self._socket.fileno())

    async def wait_closed(self) -> None:
        """Nothing is left to wait for."""

    def _accept(self) -> None:
        for _ in range(ACCEPTS_PER_TURN):
            try:
                accepted, address = self._socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _SCARCE:
                    raise
                self._limiter.turned_away(Refusal.DESCRIPTORS)
                self._pause()
                return
            accepted.setblocking(False)
            self._take(accepted, str(address[0]) if isinstance(address, tuple) else "")

    def _pause(self) -> None:
        """The socket stays readable, so that the loop would do nothing else."""
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._socket.fileno())
        self._retry = loop.call_later(RETRY_S, self.start)

    def _take(self, accepted: socket.socket, address: str) -> None:
        context = self._tls()
        connection = self._limiter.admit(address)
        if isinstance(connection, Refusal):
            with contextlib.suppress(OSError), accepted:
                if context is None:
                    accepted.send(self._goodbye)
            return
        task = asyncio.get_running_loop().create_task(self._open(connection, accepted, context))
        connection.opening = task
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    async def _open(self, connection: HttpConnection, accepted: socket.socket, context: ssl.SSLContext | None) -> None:
        timeout_s = self._limiter.limits.header_timeout_s if context is not None else None
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection, accepted, ssl=context, ssl_handshake_timeout=timeout_s
            )
        except (OSError, ssl.SSLError) as error:
            log.debug("a connection failed before its first request: %s", error)
            self._limiter.closed(connection)
        except asyncio.CancelledError:
            self._limiter.closed(connection)
        finally:
            connection.opening = None
