"""The two ways in which an answer leaves: as events while it comes, or whole. `generation.answer` says what comes when.

Does not know the shape of an API (a `ReplyWriter` does), and nothing of settling.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

from starlette.responses import Response

from relevo.core.errors import RelevoError
from relevo.gateway.generation.finished_choice import FinishedChoice
from relevo.gateway.generation.kept_answer import KeptAnswer
from relevo.gateway.generation.prepare import Prepared
from relevo.gateway.generation.reply_writer import ReplyWriter
from relevo.gateway.generation.run import PromptRun
from relevo.gateway.http.call import Call
from relevo.gateway.http.sse import EventStream
from relevo.gateway.text.parts import Delta

Keep = Callable[[], Awaitable[None]]


class Reply(Protocol):
    @property
    def response(self) -> Response | None:
        """What is left to be sent, once it is complete."""
        ...

    @property
    def has_begun(self) -> bool:
        """A status was sent: from now on an error can only be an event."""
        ...

    def take(self, run: PromptRun, delta: Delta, *, is_last: bool) -> None:
        """Does not wait. What makes the answer complete is held back. Raises RelevoError."""
        ...

    def make_room(self, num_bytes: int) -> None:
        """So many bytes are kept for the answer beside its deltas. Raises AnswerTooLarge, Overloaded."""
        ...

    def is_over(self) -> None:
        """No delta follows."""
        ...

    async def until_over(self) -> None:
        """Return once all that was taken has left."""
        ...

    async def complete(self, keep: Keep | None) -> None:
        """`keep`: what has to be done between making the end of the answer and sending it; what it raises is raised."""
        ...

    async def break_off(self, error: RelevoError) -> None:
        """Once it has begun. What has not left yet is dropped."""
        ...

    def close(self) -> None:
        """Idempotent."""
        ...


class WholeReply:
    """One JSON body, sent when it is complete: until then any error can have its status."""

    has_begun = False

    def __init__(self, call: Call, prepared: Prepared, writer: ReplyWriter) -> None:
        self.response: Response | None = None
        self._writer = writer
        self._kept = KeptAnswer(call.context.answer_memory, call.tenant)
        self._choices = [FinishedChoice(index, prepared.tells_tokens) for index in range(prepared.num_choices)]
        self._over = asyncio.Event()

    def take(self, run: PromptRun, delta: Delta, *, is_last: bool) -> None:
        self._kept.grow(self._choices[delta.index].add(delta, self._writer.logprobs(delta)))
        run.stamp(delta.index, len(delta.tokens))

    def make_room(self, num_bytes: int) -> None:
        self._kept.grow(num_bytes)

    def is_over(self) -> None:
        self._over.set()

    async def until_over(self) -> None:
        await self._over.wait()

    async def complete(self, keep: Keep | None) -> None:
        body = self._writer.whole(self._choices)
        if keep is not None:
            await keep()
        self.response = Response(body, media_type="application/json")

    async def break_off(self, error: RelevoError) -> None:
        raise error

    def close(self) -> None:
        self._kept.give_back()


class StreamedReply:
    """Events. Deltas are written where they come; what a slow client has not taken waits as bytes."""

    response = None

    def __init__(self, call: Call, writer: ReplyWriter, max_silence_s: float | None) -> None:
        self._writer = writer
        asked = [each for each in (call.context.sse_keepalive_s, max_silence_s) if each is not None]
        self._stream = EventStream(
            call.request.scope, call.send, min(asked, default=None), writer.keepalive, call.context.clock.now_ns
        )
        self._kept = KeptAnswer(call.context.answer_memory, call.tenant)  # of prompts, until they are shown
        self._is_open = False  # not the stream's `started`: a keep-alive starts it, too
        self._last = b""  # the end of the last choice
        self._last_run: PromptRun | None = None  # whose choice that is

    @property
    def has_begun(self) -> bool:
        return self._stream.started

    def take(self, run: PromptRun, delta: Delta, *, is_last: bool) -> None:
        if not self._is_open:
            self._is_open = True
            self._stream.open(self._writer.begin())
        data = self._writer.delta(delta)
        if is_last:
            self._last, self._last_run = self._writer.finish_choice(delta), run
        elif delta.finish_reason is not None:
            data += self._writer.finish_choice(delta)
        if data and self._stream.put(data):
            run.stamp(delta.index, len(delta.tokens))
        else:
            put_ns = self._stream.unread_ns
            self._stream.when_sent(lambda: self._left(run, delta.index, len(delta.tokens), put_ns))

    def _left(self, run: PromptRun, index: int, num_tokens: int, put_ns: int) -> None:
        run.stamp_late(index, num_tokens, put_ns, self._stream.unread_ns)

    def make_room(self, num_bytes: int) -> None:
        self._kept.grow(num_bytes)

    def is_over(self) -> None:
        self._stream.end_pump()

    async def until_over(self) -> None:
        await self._stream.pump()

    async def complete(self, keep: Keep | None) -> None:
        last = self._last + self._writer.end()
        if keep is not None:
            await keep()
        put_ns = self._stream.unread_ns
        await self._stream.finish(last)
        if self._last_run is not None:
            self._left(self._last_run, 0, 0, put_ns)

    async def break_off(self, error: RelevoError) -> None:
        await self._stream.finish(self._writer.error(error))

    def close(self) -> None:
        self._stream.close()
        self._kept.give_back()
