"""The last moments of an HTTP server: who has connected is answered."""

from __future__ import annotations

import asyncio
import socket

from http_wire import Echo, Rig

from relevo.gateway.http.listener import Listener
from relevo.gateway.http.server import HttpServer


async def test_a_request_that_comes_as_the_server_ends_is_answered() -> None:
    """Its connection was accepted before. Red when it is closed because no request has come on it yet."""
    listening = socket.create_server(("127.0.0.1", 0))
    server = HttpServer(Rig(Echo()).limiter, shutdown_timeout_s=1.0, handles_signals=False)
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    reader, writer = await asyncio.open_connection(*listening.getsockname())
    while not server.limiter.connections:  # noqa: ASYNC110  # of the same loop
        await asyncio.sleep(0)
    (listener,) = server.servers
    assert isinstance(listener, Listener)
    close = listener.close

    def closes_and_is_asked() -> None:
        close()
        writer.write(b"GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")

    listener.close = closes_and_is_asked  # type: ignore[method-assign]
    server.should_exit = True
    assert (await reader.read()).startswith(b"HTTP/1.1 200 ")
    writer.close()
    await serving
