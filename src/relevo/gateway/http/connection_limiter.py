"""What all HTTP connections of a process share: whom it lets in, what it waits for, and the count of it.

Owns the table of connections (`policy.http.connections` decides, this carries out) and the tasks that answer. Does not
know sockets (`http.listener` accepts) or bytes (`http.connection` reads).
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import Protocol

from starlette.types import ASGIApp, Receive, Scope, Send

from relevo.core.ports import Clock
from relevo.gateway.http.connection import HttpConnection
from relevo.gateway.http.cycle import RequestCycle
from relevo.gateway.http.errors import ErrorFormat, ErrorFormats, TooManyConnections, error_response
from relevo.policy.http.connections import ConnectionLimits, ConnectionTable, Refusal, Verdict, Wait
from relevo.telemetry.limited_log import LimitedLog

log = logging.getLogger("relevo.http")

SWEEP_S = 1.0  # arbitrary: how much later than its time a connection may end
_OPEN_WHEN_FULL = frozenset(("/health", "/ready", "/metrics"))


class ConnectionMetrics(Protocol):
    def connections_open(self, num_open: int) -> None: ...

    def connection_refused(self, reason: str) -> None:
        """`reason`: a `policy.http.connections.Refusal`."""
        ...

    def connection_timed_out(self, waited_for: str) -> None:
        """`waited_for`: a `policy.http.connections.Wait`."""
        ...

    def http_response(self, handler: str, method: str, status: int) -> None:
        """One that the application never saw."""
        ...


class NoConnectionMetrics:
    def connections_open(self, num_open: int) -> None: ...

    def connection_refused(self, reason: str) -> None: ...

    def connection_timed_out(self, waited_for: str) -> None: ...

    def http_response(self, handler: str, method: str, status: int) -> None: ...


@dataclass(slots=True)
class ConnectionLimiter:
    app: ASGIApp
    limits: ConnectionLimits
    clock: Clock
    error_formats: ErrorFormats  # by the path below `root_path`
    metrics: ConnectionMetrics = field(default_factory=NoConnectionMetrics)
    root_path: str = ""
    connections: set[HttpConnection] = field(default_factory=set)  # that have been opened and can be shut down
    tasks: set[asyncio.Task[None]] = field(default_factory=set)  # that answer
    default_headers: list[tuple[bytes, bytes]] = field(default_factory=list)  # of every response
    num_answered: int = 0
    table: ConnectionTable[HttpConnection] = field(init=False)
    _limited_log: LimitedLog = field(init=False)
    _sweeping: asyncio.TimerHandle | None = None

    def __post_init__(self) -> None:
        self.table = ConnectionTable(self.limits, HttpConnection.num_moved)
        self._limited_log = LimitedLog(log, self.clock.now_ns)

    # ---- connections -------------------------------------------------------------------------------------------------

    def admit(self, address: str) -> HttpConnection | Refusal:
        connection = HttpConnection(self)
        verdict, given_up = self.table.admit(connection, address)
        if given_up is not None:
            is_full = len(self.table) > self.limits.max_connections
            self.table.close(given_up)
            given_up.abort()
            self.turned_away(Refusal.FULL if is_full else Refusal.ADDRESS)
        if isinstance(verdict, Refusal):
            self.turned_away(verdict)
            return verdict
        connection.is_reserved = verdict is Verdict.RESERVE
        self.owes(connection, Wait.HEAD)
        self.metrics.connections_open(len(self.table))
        if self._sweeping is None:
            self._sweep_later()
        return connection

    def opened(self, connection: HttpConnection) -> None:
        self.connections.add(connection)

    def closed(self, connection: HttpConnection) -> None:
        self.connections.discard(connection)
        self.table.close(connection)
        self.metrics.connections_open(len(self.table))

    def turned_away(self, reason: Refusal) -> None:
        self.metrics.connection_refused(reason)
        self._note(f"a connection was refused ({reason})")

    def _note(self, what: str) -> None:
        num_open, most = len(self.table), self.limits.max_connections
        self._limited_log.warning(what, f"{what}; {num_open} are open of at most {most}")

    # ---- what clients owe --------------------------------------------------------------------------------------------

    def owes(self, connection: HttpConnection, wait: Wait) -> None:
        self.table.begin(connection, wait, self.clock.now_ns())

    def owes_no_more(self, connection: HttpConnection, wait: Wait) -> None:
        self.table.end(connection, wait)

    def sweep(self) -> None:
        """End what is late."""
        for connection, wait in self.table.late(self.clock.now_ns()):
            if wait not in (Wait.NEXT, Wait.LEAVE):
                self.metrics.connection_timed_out(wait)
                self._note(f"a connection timed out ({wait})")
            connection.came_too_late(wait)

    def _sweep_later(self) -> None:
        self._sweeping = asyncio.get_running_loop().call_later(SWEEP_S, self._sweep_again)

    def _sweep_again(self) -> None:
        self._sweeping = None
        self.sweep()
        if len(self.table):
            self._sweep_later()

    # ---- requests ----------------------------------------------------------------------------------------------------

    def run(self, cycle: RequestCycle, is_reserved: bool) -> None:
        is_taken = not is_reserved or cycle.scope["path"].removeprefix(self.root_path) in _OPEN_WHEN_FULL
        task = asyncio.get_running_loop().create_task(cycle.run(self.app if is_taken else self._full))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def error_format(self, path: str) -> ErrorFormat:
        return self.error_formats(path.removeprefix(self.root_path))

    async def _full(self, scope: Scope, receive: Receive, send: Send) -> None:
        await error_response(self.error_format(scope["path"]), FULL)(scope, receive, send)

    def refused(self, status: int) -> None:
        """A request that is none, answered by the connection itself."""
        self.metrics.http_response("unknown", "OTHER", status)


FULL = TooManyConnections("The server holds as many connections as it may; come back later.", retry_after_s=5.0)
