"""Those who watch: one state a second for all of them, made only while there are any, encoded once per kind of viewer.

Owns the streams, their number, and what each was given. A stream gets an event where its connection takes it at once;
where it does not, one event waits, and a stream that has not taken it for some seconds is dropped: memory is bounded by
the number of streams. What a slow one missed it gets whole. Does not know what a state is made of, nor HTTP.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from relevo.gateway.console.state import Decision, History, State
from relevo.gateway.console.views import Kind, joined, own_part, shared_part

log = logging.getLogger("relevo.gateway")

PERIOD_S = 1.0
MAX_STREAMS = 1000  # arbitrary: of one gateway; more wait too long for one another
MAX_MISSED = 10  # events, about as many seconds; arbitrary
MAX_NEW_ROUTES = 40  # arbitrary: of the routing decisions of one event
RETRY = b"retry: 1000\n\n"
_ROUTES = frozenset(("route", "prefill"))


class ReadState(Protocol):
    def __call__(self, *, history_after: int) -> Awaitable[State]:
        """With a history where it has changed since that interval was under way."""
        ...


class Frames:
    """One moment as events: whole, and what is new since the one before. Each encoded when it is first asked for."""

    def __init__(self, number: int, state: State, latest: History | None, new: tuple[Decision, ...]) -> None:
        """`state.history` is there where it has changed; `latest` either way."""
        self._number = number
        self._states = {
            True: msgspec.structs.replace(state, history=latest),
            False: msgspec.structs.replace(state, decisions=new),
        }
        self._shared: dict[bool, bytes] = {}
        self._events: dict[tuple[Kind, bool], bytes] = {}

    @property
    def num_encoded(self) -> int:
        return len(self._events)

    def event(self, kind: Kind, *, is_whole: bool) -> bytes:
        found = self._events.get((kind, is_whole))
        if found is None:
            state = self._states[is_whole]
            if is_whole not in self._shared:
                self._shared[is_whole] = shared_part(state)
            data = joined(self._shared[is_whole], own_part(state, kind))
            found = self._events[kind, is_whole] = b"id: %d\ndata: %b\n\n" % (self._number, data)
        return found


@dataclass(slots=True, eq=False)
class Listener:
    """One stream. `write_now`: False where only waiting gets something through. `may_watch`: whether its key is still
    one of this kind; asked before every event."""

    kind: Kind
    write_now: Callable[[bytes], bool]
    may_watch: Callable[[], bool] = lambda: True
    news: asyncio.Event = field(default_factory=asyncio.Event)  # `waiting` is there, or it is over
    waiting: bytes | None = None  # to be sent by the one that owns the stream; then None
    is_over: bool = False
    was_dropped: bool = False  # it did not read
    _num_missed: int = 0
    _needs_whole: bool = True

    def offer(self, frames: Frames) -> None:
        if not self.may_watch():
            self.end()
            return
        if self.waiting is not None:
            self._num_missed += 1
            self._needs_whole = True
            if self._num_missed >= MAX_MISSED:
                self.was_dropped = True
                self.end()
            return
        event = frames.event(self.kind, is_whole=self._needs_whole)
        self._needs_whole = False
        self._num_missed = 0
        if not self.write_now(event):
            self.waiting = event
            self.news.set()

    def end(self) -> None:
        self.is_over = True
        self.news.set()


@dataclass(slots=True)
class Audience:
    """For one event loop."""

    max_streams: int = MAX_STREAMS
    pause: Callable[[float], Awaitable[object]] = asyncio.sleep
    is_closed: bool = False  # no stream begins any more
    listeners: set[Listener] = field(default_factory=set)
    latest: Frames | None = None  # while there is a stream
    _task: asyncio.Task[None] | None = None
    _number: int = 0
    _history: History | None = None
    _seen: dict[tuple[str, str], int] = field(default_factory=dict)  # number of the last decision, by gateway and model

    @property
    def num_streams(self) -> int:
        return len(self.listeners)

    @property
    def is_full(self) -> bool:
        return len(self.listeners) >= self.max_streams

    def join(self, listener: Listener, read: ReadState) -> None:
        """It gets the first event at once, or as soon as there is one. `leave` must follow."""
        self.listeners.add(listener)
        if self._task is None:
            self.latest = None
            self._task = asyncio.create_task(self._run(read), name="state")
        elif self.latest is not None:
            listener.offer(self.latest)

    def leave(self, listener: Listener) -> None:
        """Idempotent. With the last one the work ends."""
        self.listeners.discard(listener)
        if not self.listeners and self._task is not None:
            self._task.cancel()
            self._task = self.latest = None

    def close(self) -> None:
        """The server stops: every stream ends at once, so that its end waits for none."""
        self.is_closed = True
        for listener in tuple(self.listeners):
            listener.end()

    async def _run(self, read: ReadState) -> None:
        loop = asyncio.get_running_loop()
        try:
            while True:
                began_s = loop.time()
                self.latest = await self._frames(read)
                for listener in tuple(self.listeners):
                    listener.offer(self.latest)
                await self.pause(max(0.0, began_s + PERIOD_S - loop.time()))
        except Exception:
            log.exception("the state cannot be told; its streams end")
            self._task = self.latest = None
            for listener in tuple(self.listeners):
                listener.end()

    async def _frames(self, read: ReadState) -> Frames:
        self._number += 1
        history = self._history if self.latest is not None else None
        state = await read(history_after=history.open_number if history is not None else -1)
        if state.history is not None:
            self._history = state.history
        return Frames(self._number, state, self._history, self._new_decisions(state))

    def _new_decisions(self, state: State) -> tuple[Decision, ...]:
        """A gateway that was restarted numbers its decisions from the beginning."""
        last: dict[tuple[str, str], int] = {}
        for each in state.decisions:
            key = (each.gateway_id, each.model)
            last[key] = max(each.number, last.get(key, 0))
        known = {key: seen if seen <= last.get(key, 0) else 0 for key, seen in self._seen.items()}
        new = [each for each in state.decisions if each.number > known.get((each.gateway_id, each.model), 0)]
        self._seen = last
        routes = [each for each in new if each.kind in _ROUTES]
        left_out = {id(each) for each in routes[:-MAX_NEW_ROUTES]}
        return tuple(each for each in new if id(each) not in left_out)
