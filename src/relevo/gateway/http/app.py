"""The ASGI application: from a connection to a handler, and from what it raised to a response.

Owns the order authenticate → find the route → handle → count, where the request's trace begins and ends, the
x-request-id header and the last resort for unexpected exceptions. Which APIs there are and how each words an error is
the routes' to know. Written against ASGI itself: framework middleware would hide that a client has gone.
"""

from __future__ import annotations

import logging
import re
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field

from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from relevo.core.errors import RelevoError
from relevo.gateway.http.auth import Caller
from relevo.gateway.http.call import Call, FieldWarnings
from relevo.gateway.http.context import GatewayContext
from relevo.gateway.http.errors import ErrorFormat, error_response
from relevo.gateway.http.route import Route, RouteTable
from relevo.gateway.http.sse import ClientGone
from relevo.gateway.requests.kept import LiveRequest
from relevo.gateway.text.start_turns import StartTurns
from relevo.policy.tracing.trace_context import response_headers
from relevo.policy.tracing.words import CallTrace

logger = logging.getLogger(__name__)

_CLEAN_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}\Z")
STATUS_CLIENT_GONE = 499  # only counted: its client is not there to read it
EXPOSED_HEADERS = (
    *("x-request-id", "retry-after", "retry-after-ms"),
    *("server-timing", "traceresponse"),
    *("x-ratelimit-limit-tokens", "x-ratelimit-remaining-tokens", "x-ratelimit-reset-tokens"),
)
UNKNOWN_HANDLER = "unknown"  # the metrics label of every path without a route


def create_app(context: GatewayContext, routes: RouteTable) -> ASGIApp:
    """The whole HTTP surface over one context. Cross-origin access only for the origins that are named."""
    app: ASGIApp = Gateway(context, routes)
    if context.allowed_origins:
        app = CORSMiddleware(
            app,
            allow_origins=list(context.allowed_origins),
            allow_methods=["*"],
            allow_headers=["*"],
            expose_headers=EXPOSED_HEADERS,
        )
    return app


@dataclass(slots=True)
class Exchange:
    """Passes messages to the server and remembers what went out; adds x-request-id and what the call has to tell."""

    send_on: Send
    request_id: str
    status: int | None = None
    reply_headers: dict[str, str] = field(default_factory=dict)
    trace: CallTrace | None = None  # None: no traces are made, or none of this
    live: LiveRequest | None = None  # what is kept of it; None: it is none for a model
    now_ns: Callable[[], int] = time.monotonic_ns

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            added = {"x-request-id": self.request_id, **self.reply_headers}
            encoded = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in added.items()]
            given = list(message.get("headers", ()))
            names = {name for name, _ in given}
            message = {**message, "headers": [*given, *(each for each in encoded if each[0] not in names)]}
        elif self.trace is not None and not message.get("more_body"):
            self.trace.ends_ns = self.now_ns()  # once it is handed over, a client may have it before this goes on
        await self.send_on(message)

    def failed_with(self, code: str, *, is_ours: bool = False) -> None:
        """For what is kept and its trace; what an answer has noted of its own end stays."""
        if self.live is not None:
            self.live.code = code
        if self.trace is not None:
            self.trace.error = self.trace.error or code
            self.trace.has_failed = self.trace.has_failed or is_ours


@dataclass(slots=True)
class Gateway:
    context: GatewayContext
    routes: RouteTable
    _field_warnings: FieldWarnings = field(default_factory=FieldWarnings)
    _start_turns: StartTurns = field(default_factory=StartTurns)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            with self.context.stopping.call():
                await self._serve(scope, receive, send)
        elif scope["type"] == "lifespan":
            await _live(receive, send)
        else:
            await send({"type": "websocket.close", "code": 1000})

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        accepted_at_ns = self.context.clock.now_ns()
        request = Request(scope, receive)
        exchange = Exchange(send, _request_id(request), now_ns=self.context.clock.now_ns)
        try:
            await self._answer(request, receive, exchange, accepted_at_ns)
        finally:
            if exchange.live is not None:
                status = exchange.status or STATUS_CLIENT_GONE
                self.context.requests.close(exchange.live, status, self.context.clock.now_ns())
            if exchange.trace is not None:
                self._end_trace(exchange, exchange.trace)

    async def _answer(self, request: Request, receive: Receive, exchange: Exchange, accepted_at_ns: int) -> None:
        scope, path = request.scope, _path_below_root(request.scope)
        handler_name, error_format = UNKNOWN_HANDLER, self.routes.error_format(path)
        try:
            if self.context.api_keys.is_open:
                self.context.site.check(request.method, request.headers)
            caller = self._caller(request, path)
            route, rest = self.routes.find(scope["method"], path, request.headers)
            error_format = route.error_format
            handler_name = route.path
            self._begin_trace(route, request, exchange, accepted_at_ns)
            if route.is_generation:
                exchange.live = self._opened(exchange.request_id, route.path, caller, accepted_at_ns)
            call = Call(
                context=self.context,
                request=request,
                send=exchange.send,
                request_id=exchange.request_id,
                caller=caller,
                reply_headers=exchange.reply_headers,
                accepted_at_ns=accepted_at_ns,
                field_warnings=self._field_warnings,
                start_turns=self._start_turns,
                error_format=route.error_format,
                path_rest=rest,
                trace=exchange.trace,
                live=exchange.live,
            )
            response = await route.handler(call)
        except ClientGone:
            exchange.status = STATUS_CLIENT_GONE
            exchange.failed_with("client_gone")
            response = None
        except RelevoError as error:
            exchange.failed_with(error.code)
            response = error_response(error_format, error, exchange.request_id)
        except Exception:
            logger.exception("unexpected failure request_id=%s path=%s", exchange.request_id, path)
            exchange.failed_with(RelevoError.code, is_ours=True)
            response = self._unexpected(exchange, error_format)
        if response is not None:
            await response(scope, receive, exchange.send)
        metrics, method = self.context.metrics, scope["method"]
        metrics.http_response(handler_name, method, exchange.status or STATUS_CLIENT_GONE)
        metrics.http_took(handler_name, method, (self.context.clock.now_ns() - accepted_at_ns) / 1e9)

    def _begin_trace(self, route: Route, request: Request, exchange: Exchange, accepted_at_ns: int) -> None:
        """Not of probes, nor of requests that were refused before they came to a handler: anyone can send those."""
        traces = self.context.traces
        if traces is not None and not route.is_open:
            exchange.trace = traces.begin(request.headers.raw, request.method, route.path, accepted_at_ns)
            exchange.reply_headers.update(response_headers(exchange.trace.own))

    def _end_trace(self, exchange: Exchange, trace: CallTrace) -> None:
        trace.ends_ns = trace.ends_ns or self.context.clock.now_ns()
        trace.status = exchange.status or STATUS_CLIENT_GONE
        trace.has_failed = trace.has_failed or trace.status >= 500
        assert self.context.traces is not None, "one has begun"
        self.context.traces.end(trace)

    def _opened(self, request_id: str, path: str, caller: Caller, accepted_at_ns: int) -> LiveRequest:
        live = LiveRequest(
            x_request_id=request_id,
            tenant=caller.tenant,
            key_id=caller.key_id,
            path=path,
            accepted_at_ns=accepted_at_ns,
            arrived_at_unix_ms=time.time_ns() // 1_000_000,
        )
        self.context.requests.open(live)
        return live

    def _caller(self, request: Request, path: str) -> Caller:
        """Raises Unauthorized; ServerStopping, for what is not asked by probes."""
        if path == "/metrics" and self.context.metrics_require_key:
            return self.context.api_keys.identify(request.headers)
        if not self.routes.is_guarded(path):
            return Caller()
        self.context.stopping.check()
        return self.context.api_keys.identify(request.headers)

    def _unexpected(self, exchange: Exchange, error_format: ErrorFormat) -> Response | None:
        if exchange.status is not None:
            return None  # the response had begun; the server closes the connection
        error = RelevoError(f"The server failed unexpectedly (request {exchange.request_id}).")
        return error_response(error_format, error, exchange.request_id)


def _path_below_root(scope: Scope) -> str:
    """The path without the prefix that a proxy in front of us serves us under (ASGI's `root_path`)."""
    path: str = scope["path"]
    root_path = scope.get("root_path", "").rstrip("/")
    return path.removeprefix(root_path) if path.startswith(root_path + "/") else path


def _request_id(request: Request) -> str:
    """The client's x-request-id if it is short and printable, else a new one."""
    given = request.headers.get("x-request-id", "")
    return given if _CLEAN_REQUEST_ID.match(given) else uuid.uuid4().hex


async def _live(receive: Receive, send: Send) -> None:
    """Nothing to start or stop: what is in the context is the composition root's."""
    while True:
        message = await receive()
        if message["type"] == "lifespan.startup":
            await send({"type": "lifespan.startup.complete"})
        elif message["type"] == "lifespan.shutdown":
            await send({"type": "lifespan.shutdown.complete"})
            return
