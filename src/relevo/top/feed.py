"""The states of a server as they come: one event stream, opened anew whenever it ends.

Owns what a server that is gone, refuses or is none of ours is told as: one sentence. Does not know what is shown.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass

import msgspec

from relevo.client.http import CLIENT_ERRORS, CannotConnect, Response
from relevo.client.server import OpenAIServer
from relevo.client.sse import SSEParser
from relevo.client.visible_text import one_line
from relevo.core.errors import StartError, Unauthorized
from relevo.top.state import Decision, State

STATE, STREAM = "/v1/state", "/v1/state/stream"
MAX_DECISIONS = 500  # kept of those that came; arbitrary
_SILENCE_S = 5.0  # a server says something once a second
_RETRY_S = (0.2, 0.5, 1.0, 2.0)  # after the first, second ... failure; the last for all more
_MAX_BODY_BYTES = 32 << 20  # of an answer that is read whole; arbitrary
_MAX_EVENT_BYTES = 16 << 20  # arbitrary


@dataclass(frozen=True, slots=True)
class Lost:
    """No state comes at present. It is tried again."""

    reason: str


class StateFeed:
    def __init__(self, server: OpenAIServer, interval_s: float = 1.0) -> None:
        """`server`: entered. At most one state comes per `interval_s`."""
        self._server = server
        self._interval_s = interval_s
        self._decisions: dict[str, Decision] = {}  # by key, in the order in which they came

    async def first(self) -> State:
        """The state now. Raises StartError or Unauthorized, each with one sentence for the person at the terminal."""
        url = self._server.url
        try:
            request = self._server.request("GET", STATE)
            async with self._server.open(request, timeout_s=10.0) as response:
                if response.status != 200:
                    raise _refusal(url, response.status, await _whole(url, response))
                return self._merged(_state(url, await _whole(url, response)))
        except (*CLIENT_ERRORS, ValueError) as error:
            raise StartError(f"{url}: {_reason(error)}; is the server running there?") from error

    async def updates(self) -> AsyncIterator[State | Lost]:
        """For ever: states, and once per loss that there are none."""
        num_failures = 0
        while True:
            try:
                async with aclosing(self._stream()) as states:
                    async for state in states:
                        num_failures = 0
                        yield state
                reason = "the server ended the stream"
            except (StartError, Unauthorized) as error:
                reason = error.message
            except (*CLIENT_ERRORS, ValueError) as error:
                reason = _reason(error)
            yield Lost(one_line(reason))
            await asyncio.sleep(_RETRY_S[min(num_failures, len(_RETRY_S) - 1)])
            num_failures += 1

    async def _stream(self) -> AsyncGenerator[State, None]:
        url, parser, told_at_s = self._server.url, SSEParser(), 0.0
        request = self._server.request("GET", STREAM, headers={"Accept": "text/event-stream"})
        async with self._server.open(request, silence_s=_SILENCE_S) as response:
            if response.status != 200:
                raise _refusal(url, response.status, await _whole(url, response))
            num_bytes = 0  # since the last event
            async for piece in response.pieces():
                events = parser.feed(piece)
                parser.problems.clear()
                num_bytes = 0 if events else num_bytes + len(piece)
                if num_bytes > _MAX_EVENT_BYTES:
                    raise StartError(f"{url}{STREAM} sends an event without end; is it a Relevo server?")
                for event in events:
                    state = self._merged(_state(url, event.data))
                    now_s = time.monotonic()
                    if now_s - told_at_s > self._interval_s - 0.5:  # events do not come to the millisecond
                        told_at_s = now_s
                        yield state

    def _merged(self, state: State) -> State:
        """With the decisions of earlier events: later ones bring what is new alone."""
        self._decisions.update({each.key: each for each in state.decisions})
        for key in list(self._decisions)[:-MAX_DECISIONS]:
            del self._decisions[key]
        return msgspec.structs.replace(state, decisions=tuple(self._decisions.values()))


async def _whole(url: str, response: Response) -> bytes:
    body = bytearray()
    async for piece in response.pieces():
        body += piece
        if len(body) > _MAX_BODY_BYTES:
            raise StartError(f"{url}{STATE} does not end; is it a Relevo server?")
    return bytes(body)


def _state(url: str, body: bytes) -> State:
    try:
        return msgspec.json.decode(body, type=State)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        told = one_line(str(error))
        raise StartError(f"{url}{STATE} answered, but not as a Relevo server of this release does: {told}") from error


def _refusal(url: str, status: int, body: bytes) -> StartError | Unauthorized:
    if status in (401, 403):
        return Unauthorized(f"{url} wants an API key that it knows: give it with --api-key or RELEVO_API_KEY")
    if status in (404, 405):
        return StartError(f"{url} has no {STATE}: it is not a Relevo server, or one that is too old; give another URL")
    return StartError(f"{url}{STATE} answered HTTP {status}{_told(body)}")


def _told(body: bytes) -> str:
    try:
        return f": {one_line(str(json.loads(body)['error']['message']))}"
    except (ValueError, KeyError, TypeError):
        return ""


def _reason(error: BaseException) -> str:
    if isinstance(error, CannotConnect):
        return "no server answers"
    if isinstance(error, ConnectionError):
        return "the connection broke off"
    if isinstance(error, TimeoutError):
        return "it says nothing"
    return one_line(str(error)) or type(error).__name__
