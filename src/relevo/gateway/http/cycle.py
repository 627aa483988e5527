"""One request and its response on a connection: ASGI's `receive` and `send`, and the response's framing.

Owns the response's bytes: with a length, in chunks, or (HTTP/1.0) until the connection ends. Does not parse; when the
next request may begin is the connection's to know.
"""

from __future__ import annotations

import asyncio
import http
import logging
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from starlette.types import ASGIApp, Message

from relevo.core.errors import RelevoError
from relevo.gateway.http.errors import ErrorFormat, error_response
from relevo.gateway.http.sse import WRITE_NOW

log = logging.getLogger("relevo.http")

Headers = Iterable[tuple[bytes, bytes]]
_NO_BODY = frozenset((204, 304))
_CLOSE = (b"connection", b"close")


class Server(Protocol):
    """The connection, as its requests see it."""

    is_write_paused: bool

    @property
    def default_headers(self) -> Sequence[tuple[bytes, bytes]]: ...

    def error_format(self, path: str) -> ErrorFormat: ...

    def write(self, data: bytes) -> None: ...

    async def until_writable(self) -> None: ...

    def wants_body(self, cycle: RequestCycle) -> None:
        """What has come of the body is taken; more may come."""
        ...

    def answered(self, cycle: RequestCycle) -> None: ...

    def break_off(self) -> None:
        """The response cannot be completed, and the client must see that."""
        ...


class RequestCycle:
    """`keep_alive`: another request may follow, until something forbids it."""

    def __init__(
        self, server: Server, scope: dict[str, Any], *, keep_alive: bool, expects_continue: bool, has_body: bool
    ) -> None:
        self._server = server
        self.scope = scope | {"extensions": {WRITE_NOW: self.write_now}}
        self.keep_alive = keep_alive
        self.expects_continue = expects_continue
        self.has_come_whole = not has_body
        self.is_gone = False  # the client
        self.is_answered = False
        self.is_last_of_many = False  # requests that came without waiting for answers; more may be on their way
        self.body = bytearray()  # what has come and was not received
        self._news = asyncio.Event()  # something to receive
        if not has_body:
            self._news.set()
        self.has_started = False
        self._is_chunked = False
        self._num_owed_bytes: int | None = None  # of the promised length
        self._is_bodiless = scope["method"] == "HEAD"
        self._is_open_ended = False  # the response has begun, says no length and is not complete

    # ---- what the connection tells -----------------------------------------------------------------------------------

    def body_came(self, data: bytes) -> None:
        self.body += data
        self._news.set()

    def body_ended(self) -> None:
        self.has_come_whole = True
        self._news.set()

    def client_went(self) -> None:
        self.is_gone = True
        self._news.set()

    # ---- ASGI --------------------------------------------------------------------------------------------------------

    async def run(self, app: ASGIApp) -> None:
        try:
            await app(self.scope, self.receive, self.send)
        except Exception:
            log.exception("the application failed path=%s", self.scope["path"])
        finally:
            if not self.is_answered and not self.is_gone:
                await self._give_up()

    async def _give_up(self) -> None:
        if self.has_started:
            self._server.break_off()
            return
        self.keep_alive = False
        error_format = self._server.error_format(self.scope["path"])
        response = error_response(error_format, RelevoError("The server failed unexpectedly."))
        await response(self.scope, self.receive, self.send)

    async def receive(self) -> Message:
        if self.expects_continue and not self.is_gone:
            self.expects_continue = False
            if not self.has_started:
                self._server.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if not self._news.is_set() and not self.is_gone and not self.is_answered:
            await self._news.wait()
        self._news.clear()
        if self.is_gone or self.is_answered:
            return {"type": "http.disconnect"}
        body, self.body = bytes(self.body), bytearray()
        self._server.wants_body(self)  # when all of it is here, too: only a connection that is read shows its end
        return {"type": "http.request", "body": body, "more_body": not self.has_come_whole}

    async def send(self, message: Message) -> None:
        server = self._server
        if server.is_write_paused and not self.is_gone:
            await server.until_writable()
        if self.is_gone:
            return
        if not self.has_started:
            self._start(message)
            return
        if self.is_answered:
            raise RuntimeError("the response is complete already")
        body: bytes = message.get("body", b"")
        more_body = message.get("more_body", False)
        if self._is_chunked:
            data = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
            server.write(data if more_body else data + b"0\r\n\r\n")
        elif body and not self._is_bodiless:
            self._write_counted(body)
        if not more_body:
            self._complete()

    def write_now(self, data: bytes) -> bool:
        """More of a body without a stated length; False where only `send` can take it, because it has to wait."""
        server = self._server
        if server.is_write_paused or self.is_gone or not self._is_open_ended:
            return False
        server.write(b"%x\r\n%b\r\n" % (len(data), data) if self._is_chunked else data)
        return True

    def _start(self, message: Message) -> None:
        if message["type"] != "http.response.start":
            raise RuntimeError(f"a response begins with its status, not with {message['type']}")
        self.has_started = True
        status: int = message["status"]
        headers = list(message.get("headers", ()))
        length = next((value for name, value in headers if name.lower() == b"content-length"), None)
        if status in _NO_BODY or status < 200:
            self._is_bodiless = True
        if self.expects_continue:
            self.keep_alive = False  # the client may send the body or leave it away; its bytes do not say which
        if length is not None:
            self._num_owed_bytes = None if self._is_bodiless else int(length)
        elif not self._is_bodiless:
            self._is_open_ended = True
            if self.scope["http_version"] == "1.0":
                self.keep_alive = False
            else:
                self._is_chunked = True
                headers.append((b"transfer-encoding", b"chunked"))
        if not self.keep_alive:
            headers.append(_CLOSE)
        self._server.write(response_head(status, (*self._server.default_headers, *headers)))

    def _write_counted(self, body: bytes) -> None:
        if self._num_owed_bytes is not None:
            self._num_owed_bytes -= len(body)
            if self._num_owed_bytes < 0:
                raise RuntimeError("the response is longer than its Content-Length")
        self._server.write(body)

    def _complete(self) -> None:
        if self._num_owed_bytes:
            raise RuntimeError("the response is shorter than its Content-Length")
        self.is_answered = True
        self._is_open_ended = False
        self._news.set()
        self._server.answered(self)


def response_head(status: int, headers: Headers) -> bytes:
    """Raises ValueError for a header that would end its line."""
    lines = [_STATUS_LINES.get(status) or _status_line(status)]
    for name, value in headers:
        lines.append(b"%b: %b\r\n" % (name, value))
        if b"\n" in value or b"\r" in value or b"\0" in value:
            raise ValueError(f"the header {name.decode('latin-1')} has a line break in it")
    lines.append(b"\r\n")
    return b"".join(lines)


def error_bytes(error_format: ErrorFormat, error: RelevoError, default_headers: Headers = ()) -> bytes:
    """The whole response, after which the connection ends."""
    reply = error_format.reply(error, "")
    own = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in reply.headers.items()]
    length = (b"content-length", b"%d" % len(reply.body))
    return response_head(reply.status, (*default_headers, *own, length, _CLOSE)) + reply.body


def _status_line(status: int) -> bytes:
    try:
        phrase = http.HTTPStatus(status).phrase
    except ValueError:
        phrase = ""
    return f"HTTP/1.1 {status} {phrase}\r\n".encode()


_STATUS_LINES = {status.value: _status_line(status.value) for status in http.HTTPStatus}
