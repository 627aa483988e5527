"""Server-sent events and the client's presence.

Owns the framing (`data: ...`), the response headers of a stream, and noticing that a client has gone.
Does not know what the events say. Source: WHATWG HTML, section "Server-sent events"; ASGI HTTP specification 2.4.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any

import orjson
from starlette.types import Receive, Send

from relevo.gateway.http.stopping import Answering, CutOff

DONE_EVENT = b"data: [DONE]\n\n"
KEEPALIVE_COMMENT = b": keep-alive\n\n"
STREAM_HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",
}


class ClientGone(Exception):
    """The client closed its connection; nothing can be sent to it any more."""


def encode_event(payload: Mapping[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(payload) + b"\n\n"


class EventStream:
    """Writes one stream of events.

    Nothing goes out before the first `write`, so an early error keeps its status; with `keepalive_s`, nothing before so
    long a silence: then comments do, and a later error is an event.
    """

    def __init__(self, send: Send, keepalive_s: float | None = None) -> None:
        self._send = send
        self._sending = asyncio.Lock()  # a comment never lands in the middle of an event
        self._was_quiet = True  # since the keep-alive looked last
        self._keepalive_s = keepalive_s
        self._keepalive: asyncio.Task[None] | None = None
        self.started = False

    def start_keepalive(self) -> None:
        """From now on no silence is longer than `keepalive_s`. Until `stop_keepalive`."""
        if self._keepalive_s is not None:
            self._keepalive = asyncio.create_task(self._keep_alive(self._keepalive_s))

    async def write(self, data: bytes) -> None:
        self._was_quiet = False
        if self.started and self._keepalive is None:  # nobody else writes
            await self._send({"type": "http.response.body", "body": data, "more_body": True})
            return
        async with self._sending:
            await self._write(data)

    async def _write(self, data: bytes) -> None:
        if not self.started:
            self.started = True
            headers = [(name.encode(), value.encode()) for name, value in STREAM_HEADERS.items()]
            await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def end(self) -> None:
        self.stop_keepalive()
        async with self._sending:
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    def stop_keepalive(self) -> None:
        """Idempotent. To be called in `finally` by whoever made the stream."""
        if self._keepalive is not None:
            self._keepalive.cancel()
            self._keepalive = None

    async def _keep_alive(self, keepalive_s: float) -> None:
        """It looks twice in that time, so a silence of any beginning is broken within it."""
        while True:
            await asyncio.sleep(keepalive_s / 2)
            if self._was_quiet:
                async with self._sending:
                    await self._write(KEEPALIVE_COMMENT)
            self._was_quiet = True


async def wait_until_gone(receive: Receive) -> None:
    """Return once the client has disconnected. The request body must have been read before."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def run_while_connected(
    receive: Receive, work: Coroutine[Any, Any, None], answering: Answering | None = None
) -> None:
    """Run `work`; cancel it at once when the client goes, and then raise ClientGone; or when the answer is cut, and
    then raise CutOff. Leaves no task behind."""
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(wait_until_gone(receive))
    try:
        if answering is not None:
            await asyncio.wait((working, watching, answering.cut), return_when=asyncio.FIRST_COMPLETED)
            if not (working.done() or watching.done() or answering.is_complete):
                raise CutOff
        await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientGone
    finally:
        for task in (working, watching):
            task.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)
    working.result()
