"""Server-sent events and the client's presence.

Owns the framing (`data: ...`), the response headers of a stream, the order in which its bytes leave, and noticing that
a client has gone. Does not know what the events say. Source: WHATWG HTML, section "Server-sent events"; ASGI HTTP
specification 2.4.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Mapping
from typing import Any

import orjson
from starlette.types import Receive, Scope, Send

from relevo.core.errors import AnswerTooLarge
from relevo.gateway.http.stopping import Answering, CutOff

WRITE_NOW = "relevo.write_now"  # of a scope: `Callable[[bytes], bool]`, see `cycle.RequestCycle.write_now`
KEEPALIVE_COMMENT = b": keep-alive\n\n"
WRITE_BYTES = 64 * 1024  # arbitrary: about so much of what waits is written at once, and then for the client to take
MAX_UNREAD_BYTES = 16 * 2**20  # arbitrary: of one stream; more than a plain one of 60,000 tokens has in all
UNREAD_NS = 1_000_000  # arbitrary: a write that takes longer waited for its client
STREAM_HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",
}


class ClientGone(Exception):
    """The client closed its connection; nothing can be sent to it any more."""


def encode_event(payload: Mapping[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(payload) + b"\n\n"


def _refuses(data: bytes) -> bool:
    return False


def writes_now(scope: Scope) -> Callable[[bytes], bool]:
    """What writes more of a response's body at once; False: only `send` can take it, because it has to wait."""
    write_now: Callable[[bytes], bool] = scope.get("extensions", {}).get(WRITE_NOW, _refuses)
    return write_now


class EventStream:
    """One stream. Bytes leave in the order in which they are put: at once where the connection takes them, else with
    `pump`, which one task awaits. Of what a slow client has not taken, so much waits and no more.

    Nothing goes out before something was put, so an early error keeps its status; with `keepalive_s`, nothing before so
    long a silence: then `keepalive` does, and a later error is an event.
    """

    def __init__(
        self,
        scope: Scope,
        send: Send,
        keepalive_s: float | None = None,
        keepalive: bytes = b"",
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._send = send
        self._now_ns = now_ns
        self._write_now = writes_now(scope)
        self._keepalive_s, self._keepalive = keepalive_s, keepalive
        self._was_quiet = True  # since the keep-alive looked last
        self._beat: asyncio.TimerHandle | None = None
        self._opening: Iterator[bytes] | None = None
        self._unsent: deque[bytes | Callable[[], None]] = deque()  # and what is called once all before it is out
        self._num_unsent_bytes = 0
        self._is_direct = False  # the head is out and nothing is unsent
        self._pumping: asyncio.Future[None] | None = None  # `pump` waits for something to do
        self._must_end = False
        self._unread_ns = 0  # for so long the connection took nothing, in all
        self._sending_since_ns: int | None = None
        self.started = False

    @property
    def unread_ns(self) -> int:
        """How long this stream has waited for its client to read, up to now: while the connection takes no bytes."""
        since_ns = self._sending_since_ns
        return self._unread_ns + (self._now_ns() - since_ns if since_ns is not None else 0)

    def open(self, pieces: Iterator[bytes]) -> None:
        """They leave before everything that is put, each when the one before is gone."""
        self._opening = pieces
        self._is_direct = False
        self._wake()

    def put(self, data: bytes) -> bool:
        """True: it is out. False: it leaves with `pump`; `when_sent` tells. Raises AnswerTooLarge where too much waits:
        then this is dropped, and what was put before leaves."""
        self._was_quiet = False
        if self._is_direct and self._write_now(data):
            return True
        self._is_direct = False
        if self._num_unsent_bytes + len(data) > MAX_UNREAD_BYTES:
            raise AnswerTooLarge(
                f"More than {MAX_UNREAD_BYTES} bytes of this stream wait for its client, which is the limit; read it "
                "faster, or ask for fewer choices, tokens or log probabilities."
            )
        self._num_unsent_bytes += len(data)
        self._unsent.append(data)
        self._wake()
        return False

    def when_sent(self, callback: Callable[[], None]) -> None:
        """Called once all that was put up to now is out."""
        if self._is_direct:
            callback()
        else:
            self._unsent.append(callback)

    def end_pump(self) -> None:
        """`pump` returns once everything is out."""
        self._must_end = True
        self._wake()

    async def pump(self) -> None:
        """Write what the connection did not take at once, until `end_pump`."""
        self._beat_later()
        while True:
            if self._opening is not None:
                await self._write_opening(self._opening)
            if self._unsent:
                await self._write_some()
                continue
            self._is_direct = self.started
            if self._must_end:
                return
            self._pumping = asyncio.get_running_loop().create_future()
            await self._pumping

    async def finish(self, data: bytes) -> None:
        """The last bytes. What is unsent because `pump` was broken off is dropped: it was never said to be out."""
        self.close()
        await self._write(data, more_body=False)

    def close(self) -> None:
        """No keep-alive any more. Idempotent; to be called in `finally` where the stream was made."""
        self._is_direct = False
        if self._beat is not None:
            self._beat.cancel()
            self._beat = None

    async def _write_opening(self, pieces: Iterator[bytes]) -> None:
        """The last piece goes with what follows it."""
        last = next(pieces, b"")
        for piece in pieces:
            await self._write(last)
            last = piece
        self._num_unsent_bytes += len(last)
        self._unsent.appendleft(last)
        self._opening = None

    async def _write_some(self) -> None:
        """Of what is unsent; never a part of what was put at once."""
        data, told = bytearray(), list[Callable[[], None]]()
        while self._unsent and len(data) < WRITE_BYTES:
            oldest = self._unsent.popleft()
            if isinstance(oldest, bytes):
                data += oldest
            else:
                told.append(oldest)
        if data:
            await self._write(bytes(data))
            self._num_unsent_bytes -= len(data)
        for callback in told:
            callback()

    async def _write(self, data: bytes, *, more_body: bool = True) -> None:
        self._sending_since_ns = self._now_ns()
        try:
            await self._pass_on(data, more_body=more_body)
        finally:
            took_ns = self._now_ns() - self._sending_since_ns
            self._sending_since_ns = None
            self._unread_ns += took_ns if took_ns >= UNREAD_NS else 0

    async def _pass_on(self, data: bytes, *, more_body: bool) -> None:
        if not self.started:
            self.started = True
            headers = [(name.encode(), value.encode()) for name, value in STREAM_HEADERS.items()]
            await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        await self._send({"type": "http.response.body", "body": data, "more_body": more_body})

    def _wake(self) -> None:
        if self._pumping is not None and not self._pumping.done():
            self._pumping.set_result(None)

    def _beat_later(self) -> None:
        """It looks twice in that time, so a silence of any beginning is broken within it."""
        if self._keepalive_s is not None:
            self._beat = asyncio.get_running_loop().call_later(self._keepalive_s / 2, self._break_silence)

    def _break_silence(self) -> None:
        if self._was_quiet and not self._num_unsent_bytes:
            self.put(self._keepalive)
        self._was_quiet = True
        self._beat_later()


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
