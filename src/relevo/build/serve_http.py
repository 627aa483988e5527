"""Serves HTTP in a gateway until it is stopped, and the order of its end.

SIGTERM: new requests are refused while those that run may finish (`shutdown_timeout_s`); then every answer is cut with
its last event and its row handed over; then connections are closed and the rows written (`build.metering`). `CUT_OFF`
cuts at once; a second SIGTERM does not, because service managers send theirs to every process of a service. Every stage
has its own deadline, and their sum is shorter than the supervisor's patience (`supervisor.GATEWAY_END_S`), so that a
gateway is never killed while it keeps rows.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import threading
from collections.abc import Awaitable, Callable

from relevo.build.configs import GatewayConfig
from relevo.build.tls import build_tls
from relevo.gateway.http.connection_limiter import ConnectionLimiter
from relevo.gateway.http.server import HttpServer
from relevo.gateway.http.stopping import Stopping
from relevo.wire.child_process import CUT_OFF

log = logging.getLogger("relevo.gateway")

CUT_S = 1.0  # for the last events of answers that were cut; arbitrary: a client that does not read gets none
CLOSE_CONNECTIONS_S = 1  # for clients to read what was written; arbitrary, whole seconds


async def serve_until_stopped(
    config: GatewayConfig,
    limiter: ConnectionLimiter,
    running: Callable[[], contextlib.AbstractAsyncContextManager[None]],
    stopping: Stopping,
    hurry: Callable[[], Awaitable[None]],
) -> None:
    """`running`: what has to run meanwhile, rows are written when it is left; `hurry`: called when answers are cut."""
    server = HttpServer(
        limiter, shutdown_timeout_s=CLOSE_CONNECTIONS_S, handles_signals=False, tls=build_tls(config.http)
    )
    _on_signals(stopping)
    async with running():
        serving = asyncio.create_task(server.serve(sockets=[socket.socket(fileno=config.listen_fd)]), name="http")
        stopped = asyncio.create_task(stopping.until_draining())
        await asyncio.wait((serving, stopped), return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if not serving.done():
            await end_answers(stopping, config.shutdown_timeout_s, hurry)
        server.should_exit = True
        await serving


async def end_answers(stopping: Stopping, shutdown_timeout_s: float, hurry: Callable[[], Awaitable[None]]) -> None:
    """Let them finish, then cut them; return when all have ended, or `CUT_S` after the cut."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(shutdown_timeout_s):
            await stopping.until_idle_or_cut()
    stopping.cut()
    hurrying = asyncio.ensure_future(hurry())
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(CUT_S):
            await asyncio.gather(hurrying, stopping.until_idle())


def _on_signals(stopping: Stopping) -> None:
    if threading.current_thread() is threading.main_thread():
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, stopping.drain)
        loop.add_signal_handler(CUT_OFF, stopping.cut)
