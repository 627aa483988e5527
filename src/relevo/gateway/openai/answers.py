"""What the two generating endpoints share: the job that a request becomes, and the answer as a stream or as a whole.

Owns the order of events: opening chunks, deltas, one finish chunk per choice, usage, `[DONE]`; and the terminal event
of a request: here, once, its tab is settled. Nothing that makes an answer complete (the body, or a stream's last finish
chunk) is sent before the ledger has kept the row. Does not know the shape of a chunk; that is an `AnswerFormat`.

A failure after the first chunk is one `data: {"error": ...}` event and the end of the body, without `[DONE]`: the
OpenAI SDK raises APIError on the event, and no client can take the text for complete.
"""

from __future__ import annotations

import contextlib
import io
import logging
from array import array
from collections.abc import Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Protocol

import orjson
from starlette.responses import Response

from relevo.core.errors import LedgerUnavailable, RelevoError
from relevo.core.outcome import Cause, cause_of
from relevo.gateway.http.call import Call
from relevo.gateway.http.sse import DONE_EVENT, ClientGone, EventStream, encode_event, run_while_connected
from relevo.gateway.http.stopping import Answering, CutOff, cut_error
from relevo.gateway.metering.meter import UsageEntry
from relevo.gateway.openai.chunks import ChunkEncoder
from relevo.gateway.openai.kept_answer import KeptAnswer
from relevo.gateway.openai.logprobs import LogprobParts
from relevo.gateway.text.generation import TextDelta, TextGeneration
from relevo.gateway.text.merge import merged_deltas

logger = logging.getLogger(__name__)


CHAR_BYTES = 4  # at most, in memory
OPENING_BYTES = 64 * 1024  # arbitrary: so many bytes of opening chunks are written at once


@dataclass(slots=True)
class FinishedChoice:
    """One choice of a whole answer, put together from its deltas; it keeps what the answer shows and nothing else."""

    index: int
    token_ids: array[int] = field(default_factory=lambda: array("q"))  # if the answer tells tokens
    logprobs: LogprobParts = field(default_factory=LogprobParts)
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    _text: io.StringIO = field(default_factory=io.StringIO)

    def add(self, delta: TextDelta, answer_format: AnswerFormat) -> int:
        """Returns about how many bytes it takes."""
        self._text.write(delta.text)
        self.finish_reason, self.stop_reason = delta.finish_reason, delta.stop_reason
        num_bytes = len(delta.text) * CHAR_BYTES
        if answer_format.tells_tokens:
            self.token_ids.extend(token.token_id for token in delta.tokens)
            shown = answer_format.logprobs(delta) if delta.tokens else None
            num_bytes += len(delta.tokens) * self.token_ids.itemsize + (self.logprobs.add(shown) if shown else 0)
        return num_bytes

    @property
    def text(self) -> str:
        return self._text.getvalue()


class AnswerFormat(Protocol):
    """The JSON of one API. `index` is prompt_index * n + sample_index."""

    @property
    def id(self) -> str:
        """Of the answer, as the client sees it."""
        ...

    def opening(self, index: int) -> dict[str, Any] | None:
        """The chunk that opens a choice, before any text."""
        ...

    @property
    def tells_tokens(self) -> bool:
        """Whether the chunks of deltas show more than text."""
        ...

    def logprobs(self, delta: TextDelta) -> dict[str, Any] | None:
        """What is said of the tokens' probabilities; None: nothing."""
        ...

    def delta(self, index: int, delta: TextDelta) -> dict[str, Any] | None:
        """The chunk for new text or tokens; None if there is nothing to tell."""
        ...

    def finish(self, index: int, delta: TextDelta) -> dict[str, Any]: ...

    def usage_only(self) -> dict[str, Any]:
        """The chunk without choices that carries the usage."""
        ...

    def whole(self, choices: Sequence[FinishedChoice]) -> dict[str, Any]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A validated request, ready to run."""

    model: str  # the served name that the client asked for
    generations: tuple[TextGeneration, ...]  # one per prompt
    num_choices_per_prompt: int
    answer_format: AnswerFormat
    stream: bool
    include_usage: bool = False
    continuous_usage: bool = False

    def index_of(self, delta: TextDelta) -> int:
        return delta.prompt_index * self.num_choices_per_prompt + delta.sample_index

    @property
    def num_choices(self) -> int:
        return len(self.generations) * self.num_choices_per_prompt


def usage_of(generations: Iterable[TextGeneration]) -> dict[str, Any]:
    """OpenAI's usage object. Cached tokens are always told and are part of the prompt tokens."""
    runs = list(generations)
    num_prompt_tokens = sum(run.num_prompt_tokens for run in runs)
    num_output_tokens = sum(run.num_output_tokens for run in runs)
    return {
        "prompt_tokens": num_prompt_tokens,
        "completion_tokens": num_output_tokens,
        "total_tokens": num_prompt_tokens + num_output_tokens,
        "prompt_tokens_details": {"cached_tokens": sum(run.num_cached_tokens for run in runs)},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }


async def answer(call: Call, job: Job) -> Response | None:
    """Run the job while the client is there. The response, or None if it has been streamed.

    Raises RelevoError if nothing was sent yet; ClientGone.
    """
    response: Response | None = None
    response_id = job.answer_format.id
    stream = EventStream(call.send, call.context.sse_keepalive_s)
    with call.context.stopping.answer() as answering:
        tab = call.context.meter.open(call.caller, job.model, response_id, job.generations, call.reply_headers)

        async def work() -> None:
            nonlocal response
            if job.stream:
                await _stream(call, job, tab, stream, answering)
            else:
                response = await _whole(call, job, tab, answering)

        try:
            await run_while_connected(call.request.receive, work(), answering)
        except ClientGone:
            tab.close(Cause.CLIENT_GONE)
            raise
        except CutOff:
            tab.close(Cause.SERVER_STOPPED)
            if not stream.started:
                raise cut_error() from None
            await stream.write(call.error_format.stream_event(cut_error(), call.request_id))
            await stream.end()
        except Exception as error:
            tab.close(cause_of(type(error)))
            raise
        finally:
            stream.stop_keepalive()
            tab.close(Cause.SERVER_STOPPED)  # this call was cancelled; else it is closed
            for generation in job.generations:
                generation.record()
    return response


async def _whole(call: Call, job: Job, tab: UsageEntry, answering: Answering) -> Response:
    kept = KeptAnswer(call.context.answer_memory, call.tenant)
    try:
        return await _put_together(job, tab, answering, kept)
    finally:
        kept.give_back()


async def _put_together(job: Job, tab: UsageEntry, answering: Answering, kept: KeptAnswer) -> Response:
    choices = [FinishedChoice(index) for index in range(job.num_choices)]
    num_unfinished = job.num_choices
    async with aclosing(merged_deltas(job.generations)) as deltas:
        async for delta in deltas:
            kept.grow(choices[job.index_of(delta)].add(delta, job.answer_format))
            job.generations[delta.prompt_index].stamp(delta)
            num_unfinished -= delta.finish_reason is not None
            if num_unfinished:
                tab.progress()
    answering.is_complete = True
    await tab.settle(Cause.COMPLETE)
    body = job.answer_format.whole(choices)
    body["usage"] = usage_of(job.generations)
    return Response(orjson.dumps(body), media_type="application/json")


async def _stream(call: Call, job: Job, tab: UsageEntry, stream: EventStream, answering: Answering) -> None:
    stream.start_keepalive()
    try:
        last = await _write_deltas(stream, job, tab)
        answering.is_complete = True
        await tab.settle(Cause.COMPLETE)
        if job.include_usage:
            last += encode_event(job.answer_format.usage_only() | {"usage": usage_of(job.generations)})
        await stream.write(last + DONE_EVENT)
        await stream.end()
    except Exception as error:
        if not stream.started:
            raise
        if not isinstance(error, RelevoError):
            logger.exception("a stream broke off request_id=%s", call.request_id)
            error = RelevoError("The server failed while it wrote this answer.")
        with contextlib.suppress(LedgerUnavailable):  # the client is told of one failure
            await tab.settle(cause_of(type(error)))
        await stream.write(call.error_format.stream_event(error, call.request_id))
        await stream.end()


async def _write_deltas(stream: EventStream, job: Job, tab: UsageEntry) -> bytes:
    """Write everything but the last finish chunk, which is returned: it makes the answer complete."""
    answer_format = job.answer_format
    encoder = _encoder(job)
    num_unfinished = job.num_choices
    last = b""
    is_open = False
    async with aclosing(merged_deltas(job.generations)) as deltas:
        async for delta in deltas:
            index = job.index_of(delta)
            data = encoder.delta(index, delta)
            if not is_open:
                is_open = True  # `stream.started` would not do: a comment starts it too
                data = await _write_openings(stream, job, encoder) + data
            if delta.finish_reason is not None:
                num_unfinished -= 1
                finish = encoder.encode(answer_format.finish(index, delta))
                if num_unfinished:
                    data += finish
                else:
                    last = finish
            if data:
                await stream.write(data)
            job.generations[delta.prompt_index].stamp(delta)
            if num_unfinished:
                tab.progress()
    return last


async def _write_openings(stream: EventStream, job: Job, encoder: ChunkEncoder) -> bytes:
    """Write what opens the choices; the rest of it, which goes with the first delta, is returned."""
    pending = bytearray()
    for opened in range(job.num_choices):
        pending += encoder.encode(job.answer_format.opening(opened))
        if len(pending) > OPENING_BYTES:
            await stream.write(bytes(pending))
            pending.clear()
    return bytes(pending)


def _encoder(job: Job) -> ChunkEncoder:
    if job.continuous_usage:
        return ChunkEncoder(job.answer_format, lambda: usage_of(job.generations))
    return ChunkEncoder(job.answer_format, (lambda: None) if job.include_usage else None)
