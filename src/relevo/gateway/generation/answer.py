"""Runs a prepared request and settles it: the one place where an answer, of any API, begins, ends and is charged.

Owns the order of events, and the end of a request: here, once, its entry in the books is settled. Nothing that makes an
answer complete (the body, or the end of a stream's last choice) leaves before the ledger has kept the row. Deltas go to
the `Reply` in the orchestrator's callback, without a task between. Does not know the shape of an answer.
"""

from __future__ import annotations

import contextlib
import logging

from starlette.responses import Response

from relevo.core.errors import LedgerUnavailable, RelevoError
from relevo.core.outcome import COMPLETE, Cause, RequestEnd
from relevo.gateway.generation.prepare import Prepared
from relevo.gateway.generation.reply import Keep, Reply, StreamedReply, WholeReply
from relevo.gateway.generation.reply_writer import ReplyWriter
from relevo.gateway.generation.run import PromptRun
from relevo.gateway.http.call import Call
from relevo.gateway.http.sse import ClientGone, run_while_connected
from relevo.gateway.http.stopping import Answering, CutOff, cut_error
from relevo.gateway.metering.meter import UsageEntry
from relevo.gateway.text.parts import Delta
from relevo.policy.tracing.words import CallTrace, Generation

logger = logging.getLogger(__name__)

_GONE = RequestEnd(cause=Cause.CLIENT_GONE)
_STOPPED = RequestEnd(cause=Cause.SERVER_STOPPED)


async def answer(
    call: Call,
    prepared: Prepared,
    writer: ReplyWriter,
    keep: Keep | None = None,
    *,
    max_silence_s: float | None = None,
) -> Response | None:
    """Run it while the client is there. The response, or None if it has been streamed.

    `keep`: awaited when the answer is complete and recorded, before its end is sent; it fails with what this raises.
    `max_silence_s`: of a stream in this API, whatever the operator's setting; None: that alone counts.

    Raises RelevoError if nothing was sent yet; ClientGone.
    """
    if call.live is not None:
        call.live.began(
            prepared.model,
            writer.response_id,
            prepared.runs,
            prepared.num_choices,
            is_streamed=prepared.is_streamed,
        )
        call.context.requests.began(call.live)
    with call.context.stopping.answer() as answering:
        entry = call.context.meter.open(
            call.caller, prepared.model, writer.response_id, prepared.runs, call.reply_headers
        )
        reply = (
            StreamedReply(call, writer, max_silence_s) if prepared.is_streamed else WholeReply(call, prepared, writer)
        )
        running = RunningAnswer(call.request_id, prepared, reply, entry, answering, keep, call.trace)
        if call.trace is not None:
            call.trace.generation = _generation(prepared, writer.response_id)
        end = _STOPPED  # if this call is cancelled
        try:
            await run_while_connected(call.request.receive, running.run(), answering)
            end = COMPLETE
        except ClientGone:
            end = _GONE
            raise
        except CutOff:
            running.end(_STOPPED)
            if not reply.has_begun:
                raise cut_error() from None
            await reply.break_off(cut_error())
        except Exception as error:
            end = RequestEnd.of(error)
            raise
        finally:
            running.end(end)
            reply.close()  # last: until its runs have ended, a cancelled answer is still given deltas
    return reply.response


def _generation(prepared: Prepared, response_id: str) -> Generation:
    sampling = prepared.runs[0].request.sampling
    return Generation(
        operation="chat" if prepared.is_conversation else "text_completion",
        model=prepared.model,
        response_id=response_id,
        is_streamed=prepared.is_streamed,
        num_choices=sampling.n,
        max_tokens=sampling.max_tokens,
        conversation=prepared.session,
    )


class RunningAnswer:
    """Implements generation.run.RunListener."""

    def __init__(
        self,
        request_id: str,
        prepared: Prepared,
        reply: Reply,
        entry: UsageEntry,
        answering: Answering,
        keep: Keep | None = None,
        trace: CallTrace | None = None,
    ) -> None:
        self._request_id = request_id  # of the HTTP request, for the log
        self._runs = prepared.runs
        self._reply = reply
        self._entry = entry
        self._answering = answering
        self._keep = keep
        self._trace = trace
        self._num_unfinished = prepared.num_choices
        self._error: Exception | None = None  # the first; it ends all prompts
        self._has_ended = False

    async def run(self) -> None:
        """Raises what went wrong while the client can still have a status for it."""
        try:
            for run in self._runs:
                if self._error is None:
                    run.start(self)
            await self._reply.until_over()
            if self._error is not None:
                raise self._error
            self._answering.is_complete = True
            await self._entry.settle(COMPLETE)
            await self._reply.complete(self._keep)
        except Exception as error:
            if not self._reply.has_begun:
                raise
            await self._break_off(error)

    def end(self, end: RequestEnd) -> None:
        """The first end counts: nothing more is generated, the entry is closed, what was done is recorded."""
        if not self._has_ended:
            self._has_ended = True
            self._end_runs(end)
            self._entry.close(end)
            for run in self._runs:
                run.record()
            if self._trace is not None:
                self._trace.ended_with(end, (told for run in self._runs if (told := run.traced()) is not None))

    def on_delta(self, run: PromptRun, delta: Delta) -> None:
        if self._error is not None:
            return
        try:
            self._num_unfinished -= delta.finish_reason is not None
            is_last = not self._num_unfinished
            self._reply.take(run, delta, is_last=is_last)
            if is_last:
                self._reply.is_over()
            else:
                self._entry.progress()
        except Exception as error:
            self.on_failure(error)

    def on_scores(self, run: PromptRun, num_bytes: int) -> None:
        if self._error is not None:
            return
        try:
            self._reply.make_room(num_bytes)
        except Exception as error:
            self.on_failure(error)

    def on_failure(self, error: Exception) -> None:
        if self._error is None:
            self._error = error
            self._end_runs(RequestEnd.of(error))
            self._reply.is_over()

    async def _break_off(self, error: Exception) -> None:
        if not isinstance(error, RelevoError):
            logger.error("a stream broke off request_id=%s", self._request_id, exc_info=error)
            error = RelevoError("The server failed while it wrote this answer.")
        end = RequestEnd.of(error)
        with contextlib.suppress(LedgerUnavailable):  # the client is told of one failure
            await self._entry.settle(end)
        self.end(end)
        await self._reply.break_off(error)

    def _end_runs(self, end: RequestEnd) -> None:
        for run in self._runs:
            run.end(end)
