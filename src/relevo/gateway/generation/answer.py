"""Runs a prepared request and settles it: the one place where an answer, of any API, begins, ends and is charged.

Owns the order of events, and the end of a request: here, once, its entry in the books is settled. Nothing that makes an
answer complete (the body, or the end of a stream's last choice) is sent before the ledger has kept the row. Deltas are
written where they come, in the orchestrator's callback; only what a slow client has not taken waits. Does not know the
shape of an answer: that is a `ReplyWriter`'s.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from functools import partial

from starlette.responses import Response

from relevo.core.errors import LedgerUnavailable, RelevoError
from relevo.core.outcome import COMPLETE, Cause, RequestEnd
from relevo.gateway.generation.finished_choice import FinishedChoice
from relevo.gateway.generation.kept_answer import KeptAnswer
from relevo.gateway.generation.prepare import Prepared
from relevo.gateway.generation.reply_writer import ReplyWriter
from relevo.gateway.generation.run import PromptRun
from relevo.gateway.http.call import Call
from relevo.gateway.http.sse import ClientGone, EventStream, run_while_connected
from relevo.gateway.http.stopping import Answering, CutOff, cut_error
from relevo.gateway.metering.meter import UsageEntry
from relevo.gateway.text.parts import Delta

logger = logging.getLogger(__name__)

_GONE = RequestEnd(cause=Cause.CLIENT_GONE)
_STOPPED = RequestEnd(cause=Cause.SERVER_STOPPED)


async def answer(call: Call, prepared: Prepared, writer: ReplyWriter) -> Response | None:
    """Run it while the client is there. The response, or None if it has been streamed.

    Raises RelevoError if nothing was sent yet; ClientGone.
    """
    with call.context.stopping.answer() as answering:
        entry = call.context.meter.open(
            call.caller, prepared.model, writer.response_id, prepared.runs, call.reply_headers
        )
        kind: type[RunningAnswer] = StreamedAnswer if prepared.spec.is_streamed else WholeAnswer
        running = kind(call, prepared, writer, entry, answering)
        end = _STOPPED  # if this call is cancelled
        try:
            await run_while_connected(call.request.receive, running.run(), answering)
            end = COMPLETE
        except ClientGone:
            end = _GONE
            raise
        except CutOff:
            running.end(_STOPPED)
            await running.cut()
        except Exception as error:
            end = RequestEnd.of(error)
            raise
        finally:
            running.end(end)
    return running.response


class RunningAnswer:
    """What streamed and whole answers have in common. Implements generation.run.RunListener."""

    def __init__(
        self, call: Call, prepared: Prepared, writer: ReplyWriter, entry: UsageEntry, answering: Answering
    ) -> None:
        self.response: Response | None = None
        self._call = call
        self._prepared = prepared
        self._writer = writer
        self._entry = entry
        self._answering = answering
        self._num_unfinished = prepared.num_choices
        self._error: Exception | None = None
        self._has_ended = False

    async def run(self) -> None:
        raise NotImplementedError

    async def cut(self) -> None:
        """The server stops in the middle of it. Raises ServerStopping if nothing was sent yet."""
        raise cut_error()

    def end(self, end: RequestEnd) -> None:
        """The first end counts: nothing more is generated, the entry is closed, what was done is recorded."""
        if self._has_ended:
            return
        self._has_ended = True
        self._end_runs(end)
        self._entry.close(end)
        for run in self._prepared.runs:
            run.record()

    # ---- RunListener -------------------------------------------------------------------------------------------------

    def on_delta(self, run: PromptRun, delta: Delta) -> None:
        if self._error is not None:
            return
        try:
            self._num_unfinished -= delta.finish_reason is not None
            self._take(run, delta)
            if self._num_unfinished:
                self._entry.progress()
            else:
                self._is_over()
        except Exception as error:
            self._fail(error)

    def on_failure(self, error: RelevoError) -> None:
        if self._error is None:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        """The first failure of any prompt ends all."""
        self._error = error
        self._end_runs(RequestEnd.of(error))
        self._is_over()

    # ---- for both kinds ----------------------------------------------------------------------------------------------

    def _take(self, run: PromptRun, delta: Delta) -> None:
        raise NotImplementedError

    def _is_over(self) -> None:
        """No further delta is of use."""
        raise NotImplementedError

    def _start(self) -> None:
        for run in self._prepared.runs:
            if self._error is None:
                run.start(self)

    def _end_runs(self, end: RequestEnd) -> None:
        for run in self._prepared.runs:
            run.end(end)

    async def _settle(self) -> None:
        """All of it is there. Raises what went wrong."""
        if self._error is not None:
            raise self._error
        self._answering.is_complete = True
        await self._entry.settle(COMPLETE)


class WholeAnswer(RunningAnswer):
    """One JSON body."""

    def __init__(
        self, call: Call, prepared: Prepared, writer: ReplyWriter, entry: UsageEntry, answering: Answering
    ) -> None:
        super().__init__(call, prepared, writer, entry, answering)
        self._over = asyncio.Event()
        self._kept = KeptAnswer(call.context.answer_memory, call.tenant)
        tells_tokens = prepared.spec.tells_tokens
        self._choices = [FinishedChoice(index, tells_tokens) for index in range(prepared.num_choices)]

    async def run(self) -> None:
        try:
            self._start()
            await self._over.wait()
            await self._settle()
            body = self._writer.whole(self._choices)
        finally:
            self._kept.give_back()
        self.response = Response(body, media_type="application/json")

    def _take(self, run: PromptRun, delta: Delta) -> None:
        self._kept.grow(self._choices[delta.index].add(delta, self._writer.logprobs(delta)))
        run.stamp(delta)

    def _is_over(self) -> None:
        self._over.set()


class StreamedAnswer(RunningAnswer):
    """Events. A failure after the first one is an event too, the last one."""

    def __init__(
        self, call: Call, prepared: Prepared, writer: ReplyWriter, entry: UsageEntry, answering: Answering
    ) -> None:
        super().__init__(call, prepared, writer, entry, answering)
        self._stream = EventStream(call.request.scope, call.send, call.context.sse_keepalive_s, writer.keepalive)
        self._is_open = False  # `stream.started` would not do: a keep-alive starts it too
        self._last = b""  # the end of the last choice: it makes the answer complete

    async def run(self) -> None:
        try:
            self._start()
            await self._stream.pump()
            await self._settle()
            await self._stream.finish(self._last + self._writer.end())
        except Exception as error:
            if not self._stream.started:
                raise
            await self._break_off(error)
        finally:
            self._stream.close()

    async def cut(self) -> None:
        if not self._stream.started:
            raise cut_error()
        await self._stream.finish(self._writer.error(cut_error()))

    async def _break_off(self, error: Exception) -> None:
        if not isinstance(error, RelevoError):
            logger.error("a stream broke off request_id=%s", self._call.request_id, exc_info=error)
            error = RelevoError("The server failed while it wrote this answer.")
        with contextlib.suppress(LedgerUnavailable):  # the client is told of one failure
            await self._entry.settle(RequestEnd.of(error))
        self.end(RequestEnd.of(error))
        await self._stream.finish(self._writer.error(error))

    def _take(self, run: PromptRun, delta: Delta) -> None:
        if not self._is_open:
            self._is_open = True
            self._stream.open(self._writer.begin())
        data = self._writer.delta(delta)
        if delta.finish_reason is not None:
            finish = self._writer.finish_choice(delta)
            if self._num_unfinished:
                data += finish
            else:
                self._last = finish
        if data and self._stream.put(data):
            run.stamp(delta)
        else:
            self._stream.when_sent(partial(run.stamp, delta))

    def _is_over(self) -> None:
        self._stream.end_pump()
