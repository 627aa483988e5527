"""One HTTP/1.1 connection: bytes in, requests in their order, answers in the same order.

The parser is llhttp through httptools, in its strict mode. Owns what a parser leaves open: an offer to change the
protocol is declined by answering as if it had not been made (RFC 9110, section 7.8), fields after a chunked body are
not headers, what is bounded, what waits. Does not know what an application answers, and how long a client may keep it
waiting is `policy.http.connections`'.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import httptools

from relevo.gateway.http.cycle import RequestCycle, error_bytes
from relevo.gateway.http.errors import BadHttp, ErrorFormat
from relevo.gateway.http.head import MAX_FIELDS, MAX_HEAD_BYTES, MAX_TARGET_BYTES, http_scope
from relevo.policy.http.connections import Wait

if TYPE_CHECKING:
    from relevo.gateway.http.connection_limiter import ConnectionLimiter

MAX_BUFFERED_BYTES = 64 * 2**10  # of bodies that no handler has taken yet; then reading pauses; arbitrary
MAX_PIPELINED = 16  # requests that wait for the answer to one before them; arbitrary


class HttpConnection(asyncio.Protocol):
    """`limiter`: what all connections of a server share."""

    def __init__(self, limiter: ConnectionLimiter) -> None:
        self.limiter = limiter
        self.is_write_paused = False
        self.num_body_bytes = 0  # that have come
        self.is_reserved = False  # above the bound; see `policy.http.connections`
        self.opening: asyncio.Task[None] | None = None  # until it is open, its TLS handshake included
        self._transport: asyncio.Transport | None = None
        self._about: dict[str, Any] = {}
        self._writable = asyncio.Event()
        self._num_unwritten_at_pause = 0
        self._current: RequestCycle | None = None  # is being answered
        self._coming: RequestCycle | None = None  # whose body comes in
        self._waiting: deque[RequestCycle | BadHttp] = deque()
        self._wait: Wait | None = Wait.HEAD  # what the client owes; since it was accepted
        self._is_reading_paused = False
        self._is_deaf = False  # no further request is taken
        self._is_leaving = False
        self._parser = self._new_parser()
        self._is_in_head = False
        self._is_replaying = False  # the parser is told how a body is framed
        self._is_upgrade_declined = False
        self._had_event = False
        self._num_quiet_bytes = 0  # since the parser last had something to tell
        self._num_head_bytes = 0
        self._target = b""
        self._headers: list[tuple[bytes, bytes]] = []

    # ---- asyncio -----------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are not subclasses of it
        self._about = _about(self._transport)
        self.limiter.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.limiter.closed(self)
        self._transport = None
        self._is_deaf = True
        self.is_write_paused = False
        self._writable.set()
        self._waiting.clear()
        if self._current is not None:
            self._current.client_went()

    def data_received(self, data: bytes) -> None:
        if self._is_deaf:
            return
        self._had_event = False
        self._feed(data)
        self._num_quiet_bytes = 0 if self._had_event else self._num_quiet_bytes + len(data)
        if self._num_quiet_bytes > MAX_HEAD_BYTES:
            self._refuse(_too_large())

    def pause_writing(self) -> None:
        assert self._transport is not None
        self.is_write_paused = True
        self._writable.clear()
        self._num_unwritten_at_pause = self._transport.get_write_buffer_size()
        self.limiter.owes(self, Wait.READER)

    def resume_writing(self) -> None:
        self.is_write_paused = False
        self._writable.set()
        self.limiter.owes_no_more(self, Wait.READER)

    def num_moved(self, wait: Wait) -> int:
        """For `policy.http.connections`."""
        if wait is Wait.READER and self._transport is not None:
            return self._num_unwritten_at_pause - self._transport.get_write_buffer_size()
        return self.num_body_bytes

    # ---- what the server asks for ------------------------------------------------------------------------------------

    def shutdown(self) -> None:
        """After the answer that is being written, at once if there is none."""
        if self._current is None:
            self._leave()
        else:
            self._current.keep_alive = False

    def came_too_late(self, wait: Wait) -> None:
        """The client has kept the server waiting too long."""
        if self._transport is None:
            self.abort()
        elif wait is Wait.HEAD and self._is_in_head:
            self._refuse(BadHttp("The headers of this request did not come in time; send them in one go.", 408))
        elif wait is Wait.BODY:
            self._refuse(BadHttp("The body of this request did not come in time; the server waits no longer.", 408))
        elif wait in (Wait.HEAD, Wait.NEXT):
            self._leave()
        elif wait is Wait.LEAVE and self._transport.get_write_buffer_size():
            self._num_unwritten_at_pause = self._transport.get_write_buffer_size()
            self.limiter.owes(self, Wait.READER)  # it reads its last answer, only slowly
        else:
            self.abort()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()
        elif self.opening is not None:
            self.opening.cancel()

    # ---- the parser's callbacks --------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self._is_replaying:
            return
        if self._is_deaf:
            raise BadHttp("nothing is read any more")  # ends the parser's turn; see `_refuse`
        self._had_event = True
        self._is_in_head = True
        self._target, self._headers, self._num_head_bytes = b"", [], 0
        self._reconsider()

    def on_url(self, url: bytes) -> None:
        if self._is_replaying:
            return
        self._target += url
        if len(self._target) > MAX_TARGET_BYTES:
            raise BadHttp(f"The request line is longer than {MAX_TARGET_BYTES} bytes; send less in the URL.", 414)

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._is_replaying:
            return
        self._num_head_bytes += len(name) + len(value)
        if self._num_head_bytes > MAX_HEAD_BYTES:
            raise _too_large()
        if not self._is_in_head:
            return  # a trailer: it is not read
        if len(self._headers) == MAX_FIELDS:
            raise BadHttp(f"The request has more than {MAX_FIELDS} header fields; send fewer.", 431)
        self._headers.append((name.lower(), value.strip(b" \t")))

    def on_headers_complete(self) -> None:
        if self._is_replaying:
            return
        self._had_event = True
        self._is_in_head, self._num_head_bytes = False, 0
        parser = self._parser
        version = parser.get_http_version()
        method = parser.get_method().decode()
        root_path = self.limiter.root_path
        scope = http_scope(method, version, self._target, self._headers, root_path, self._about)
        framing = dict(self._headers)
        self._target = b""
        self._is_upgrade_declined = parser.should_upgrade()
        has_body = b"transfer-encoding" in framing or framing.get(b"content-length", b"0").strip(b"0") != b""
        cycle = RequestCycle(
            self,
            scope,
            keep_alive=version == "1.1" and parser.should_keep_alive() and not self.is_reserved,
            expects_continue=version == "1.1" and framing.get(b"expect", b"").lower() == b"100-continue" and has_body,
            has_body=has_body,
        )
        self._coming = cycle
        self._line_up(cycle)

    def on_body(self, body: bytes) -> None:
        self._had_event = True
        self.num_body_bytes += len(body)
        cycle = self._coming
        if cycle is None or cycle.is_answered:
            return
        cycle.expects_continue = False
        cycle.body_came(body)
        if len(cycle.body) > MAX_BUFFERED_BYTES:
            self._pause_reading()

    def on_message_complete(self) -> None:
        if self._is_upgrade_declined:
            return  # the parser takes the rest for another protocol; see `_feed`
        self._had_event = True
        self._num_head_bytes = 0
        cycle, self._coming = self._coming, None
        if cycle is None:
            return
        if not cycle.keep_alive:
            self._is_deaf = True
        if not cycle.has_come_whole:
            cycle.body_ended()
        if cycle.is_answered:
            self._after_answer(cycle)
        else:
            self._reconsider()

    # ---- what the application's side asks for (`cycle.Server`) -------------------------------------------------------

    @property
    def default_headers(self) -> Sequence[tuple[bytes, bytes]]:
        return self.limiter.default_headers

    def error_format(self, path: str) -> ErrorFormat:
        return self.limiter.error_format(path)

    def write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    async def until_writable(self) -> None:
        await self._writable.wait()

    def wants_body(self, cycle: RequestCycle) -> None:
        self._resume_reading()

    def break_off(self) -> None:
        self.abort()

    def answered(self, cycle: RequestCycle) -> None:
        self.limiter.num_answered += 1
        self._current = None
        if cycle.has_come_whole:
            self._after_answer(cycle)
        elif not cycle.keep_alive:
            self._leave(lingering=not cycle.expects_continue)
        else:
            self._resume_reading()  # what is left of the body is thrown away, for a while
            self._reconsider()

    # ---- order -------------------------------------------------------------------------------------------------------

    def _line_up(self, cycle: RequestCycle) -> None:
        if self._current is None:
            self._run(cycle)
            return
        self._waiting.append(cycle)
        if len(self._waiting) >= MAX_PIPELINED:
            cycle.keep_alive = False  # what follows is not read; its client sends it again, on another connection
            cycle.is_last_of_many = True

    def _run(self, cycle: RequestCycle) -> None:
        self._current = cycle
        self.limiter.run(cycle, self.is_reserved)
        self._reconsider()

    def _after_answer(self, cycle: RequestCycle) -> None:
        """It is answered and has come whole."""
        if not cycle.keep_alive:
            self._leave(lingering=cycle.is_last_of_many)
        elif self._waiting:
            following = self._waiting.popleft()
            if isinstance(following, BadHttp):
                self._say_no(following)
            else:
                self._run(following)
                self._resume_reading()
        else:
            self._resume_reading()
            self._reconsider()

    def _refuse(self, error: BadHttp) -> None:
        """After the answers to what came before."""
        if self._is_deaf:
            return
        self._is_deaf = True
        coming, self._coming = self._coming, None  # its body is broken: it has no end that could be answered
        if coming is not None:
            error.path = coming.scope["path"]
        elif self._target:
            error.path = self.limiter.root_path + self._target.partition(b"?")[0].decode("latin-1")
        if coming is not None and coming is self._current:
            self._current = None
            coming.client_went()
        elif coming is not None and coming in self._waiting:
            self._waiting.remove(coming)
        if coming is not None and coming.has_started:
            self.abort()
        elif self._current is not None:
            self._waiting.append(error)
        else:
            self._say_no(error)

    def _say_no(self, error: BadHttp) -> None:
        self.write(error_bytes(self.error_format(error.path), error, self.default_headers))
        self.limiter.refused(error.status)
        self._leave(lingering=True)

    def _leave(self, *, lingering: bool = False) -> None:
        """End the connection once what was written has been sent. `lingering`: the client may still be sending; what
        comes is thrown away for a while, since a connection closed at once is reset, and its answer may be lost."""
        transport = self._transport
        if transport is None or self._is_leaving:
            return
        self._is_deaf = self._is_leaving = True
        self._owe(Wait.LEAVE)
        if lingering:
            self._resume_reading()
        if not lingering:
            transport.close()
        elif transport.can_write_eof():
            with contextlib.suppress(OSError):
                transport.write_eof()

    # ---- reading -----------------------------------------------------------------------------------------------------

    def _feed(self, data: bytes) -> None:
        rest: bytes | None = data
        while rest is not None:
            try:
                rest = self._parse(rest)
            except httptools.HttpParserCallbackError as failure:
                if not isinstance(failure.__context__, BadHttp):
                    raise
                self._refuse(failure.__context__)
                return
            except httptools.HttpParserError as failure:
                self._refuse(_not_http(str(failure)))
                return

    def _parse(self, data: bytes) -> bytes | None:
        """What is left for another parser. Raises HttpParserError, whose context is what a callback raised; so nothing
        is parsed while an exception is handled."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            num_parsed = upgrade.args[0]
        else:
            return None
        self._decline_upgrade()
        return data[num_parsed:]

    def _decline_upgrade(self) -> None:
        """The message goes on as its framing says. A parser that never saw the offer is told the framing alone."""
        framing = [field for field in self._headers if field[0] in (b"content-length", b"transfer-encoding")]
        self._parser = self._new_parser()
        self._is_upgrade_declined = False
        lines = [b"%b: %b\r\n" % field for field in framing]
        if self._coming is not None and not self._coming.keep_alive:
            lines.append(b"connection: close\r\n")
        self._is_replaying = True
        try:
            self._parser.feed_data(b"".join((b"POST / HTTP/1.1\r\n", *lines, b"\r\n")))
        finally:
            self._is_replaying = False

    def _new_parser(self) -> httptools.HttpRequestParser:
        return httptools.HttpRequestParser(self)

    def _pause_reading(self) -> None:
        if not self._is_reading_paused and self._transport is not None:
            self._is_reading_paused = True
            self._transport.pause_reading()
            self._reconsider()

    def _resume_reading(self) -> None:
        if self._is_reading_paused and self._transport is not None:
            self._is_reading_paused = False
            self._transport.resume_reading()
            self._reconsider()

    # ---- what the client owes ----------------------------------------------------------------------------------------

    def _reconsider(self) -> None:
        if self._is_leaving:
            return
        if self._coming is not None and self._coming.is_answered:
            self._owe(Wait.LEAVE)
        elif self._current is None:
            self._owe(Wait.HEAD if self._is_in_head else Wait.NEXT)
        elif self._coming is self._current and not self._is_reading_paused:
            self._owe(Wait.BODY)
        else:
            self._owe(None)

    def _owe(self, wait: Wait | None) -> None:
        if wait is self._wait:
            return
        if self._wait is not None:
            self.limiter.owes_no_more(self, self._wait)
        self._wait = wait
        if wait is not None:
            self.limiter.owes(self, wait)


def _about(transport: asyncio.Transport) -> dict[str, Any]:
    """What every scope of a connection says of it."""
    peer, own = transport.get_extra_info("peername"), transport.get_extra_info("sockname")
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "scheme": "http" if transport.get_extra_info("sslcontext") is None else "https",
        "client": (peer[0], peer[1]) if isinstance(peer, tuple) else None,
        "server": (own[0], own[1]) if isinstance(own, tuple) else None,
    }


def _too_large() -> BadHttp:
    return BadHttp(f"The headers of this request are larger than {MAX_HEAD_BYTES} bytes; send less.", 431)


def _not_http(reason: str) -> BadHttp:
    if "PRI" in reason:
        return BadHttp("This server speaks HTTP/1.1; the connection began with HTTP/2's preface.", 505)
    return BadHttp(f"This is not an HTTP/1.1 request: {reason}.")
