"""The paths of the server's state, once and as a stream; their errors look like OpenAI's."""

from __future__ import annotations

import asyncio
from functools import partial

from starlette.responses import Response

from relevo.core.errors import ServerStopping, Unauthorized
from relevo.gateway.console.audience import RETRY, Listener
from relevo.gateway.console.reading import read_state
from relevo.gateway.console.views import Kind, joined, kind_of, own_part, shared_part
from relevo.gateway.http.call import Call
from relevo.gateway.http.errors import TooManyConnections
from relevo.gateway.http.route import Route
from relevo.gateway.http.sse import STREAM_HEADERS, ClientGone, wait_until_gone, writes_now
from relevo.gateway.openai.errors import OPENAI_ERRORS


async def show_state(call: Call) -> Response:
    """The server's state at this moment, as far as the key that asks may see it."""
    kind = kind_of(call.caller, is_open=call.context.api_keys.is_open)
    state = await read_state(call.context)
    body = joined(shared_part(state), own_part(state, kind))
    return Response(body, media_type="application/json", headers={"cache-control": "no-store"})


async def stream_state(call: Call) -> Response | None:
    """The same once a second, as server-sent events. Raises TooManyConnections, ServerStopping, ClientGone."""
    audience = call.context.watch.audience
    if call.request.method == "HEAD":
        return Response(headers=STREAM_HEADERS)
    if audience.is_closed:
        raise ServerStopping("This server is being stopped; connect again, to another server or in a moment.")
    if audience.is_full:
        raise TooManyConnections(
            f"{audience.max_streams} streams of the state are open, which is the limit; close one, or ask GET "
            "/v1/state from time to time."
        )
    kind = kind_of(call.caller, is_open=call.context.api_keys.is_open)
    listener = Listener(kind, writes_now(call.request.scope), partial(_is_still, call, kind))
    call.context.stopping.when_draining(audience.close)
    headers = [(name.encode(), value.encode()) for name, value in STREAM_HEADERS.items()]
    await call.send({"type": "http.response.start", "status": 200, "headers": headers})
    await call.send({"type": "http.response.body", "body": RETRY, "more_body": True})
    gone = asyncio.ensure_future(wait_until_gone(call.request.receive))
    gone.add_done_callback(lambda _: listener.end())
    audience.join(listener, partial(read_state, call.context))
    try:
        await _send_what_waits(call, listener)
        if gone.done() or listener.was_dropped:
            raise ClientGone
        await call.send({"type": "http.response.body", "body": b"", "more_body": False})
    finally:
        audience.leave(listener)
        gone.cancel()
    return None


def _is_still(call: Call, kind: Kind) -> bool:
    """Keys end, and a server gets its first one."""
    keys = call.context.api_keys
    try:
        return kind_of(keys.identify(call.request.headers), is_open=keys.is_open) == kind
    except Unauthorized:
        return False


async def _send_what_waits(call: Call, listener: Listener) -> None:
    """Until it is over. What cannot be written at once is waited for here, unless the stream ends meanwhile."""
    sending: asyncio.Future[None] | None = None
    try:
        while not listener.is_over:
            await listener.news.wait()
            listener.news.clear()
            if listener.waiting is not None and sending is None:
                message = {"type": "http.response.body", "body": listener.waiting, "more_body": True}
                sending = asyncio.ensure_future(call.send(message))
                sending.add_done_callback(lambda _: listener.news.set())
            elif sending is not None and sending.done():
                sending.result()
                sending = listener.waiting = None
    finally:
        if sending is not None:
            sending.cancel()


CONSOLE_ROUTES = (
    Route("GET", "/v1/state", show_state, OPENAI_ERRORS),
    Route("GET", "/v1/state/stream", stream_state, OPENAI_ERRORS, media_type="text/event-stream"),
)
