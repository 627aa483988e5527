"""From pieces of an engine's stream to outputs of a worker: what goes with the first token, and with the last."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from time import perf_counter
from typing import Protocol

from relevo.client.http import CLIENT_ERRORS
from relevo.core.baton import KVTicket, PrefillFacts, SampleState
from relevo.core.errors import RelevoError
from relevo.core.events import TokenOutput
from relevo.core.ids import WorkerId
from relevo.core.request import EngineRequest, FinishReason
from relevo.engines.pool import EnginePool, Peer
from relevo.engines.words import EngineFailed, Piece
from relevo.wire.messages import ToGateway

ENGINE_FAILURES = (*CLIENT_ERRORS, EngineFailed)


@dataclass(slots=True, eq=False)
class Job:
    """What was asked of this engine for one request."""

    request: EngineRequest
    tasks: list[asyncio.Task[None]] = field(default_factory=list)
    names: list[str] = field(default_factory=list)  # of its asks, as the engine knows them
    ticket_name: str = ""
    num_prefill_tokens: int = 0  # not yet computed, as far as is known
    num_unfinished: int = 0  # continuations
    is_aborted: bool = False
    is_decoding: bool = False
    has_begun: bool = False  # the engine has answered


class Teller(Protocol):
    """The link, as far as a stream needs it."""

    peer: Peer
    pool: EnginePool

    @property
    def worker_id(self) -> WorkerId: ...

    @property
    def has_ended(self) -> bool: ...

    def tell(self, message: ToGateway) -> None: ...

    def fail(self, job: Job, error: Exception) -> None:
        """The request's part here is over."""
        ...

    async def is_there(self, error: Exception) -> bool:
        """After a failure. If not, the link has ended, and with it all that ran there."""
        ...

    def tell_output(self, output: TokenOutput) -> None: ...

    def over(self, job: Job) -> None: ...

    def note_prompt(self, num_computed_tokens: int, begun_s: float) -> None: ...

    def note_tokens(self, num_tokens: int, gap_s: float | None) -> None: ...

    def num_hit_tokens(self, request: EngineRequest) -> int: ...


class Telling:
    """One stream. The last output is told by `ended`: what the engine accounts for comes after it."""

    def __init__(
        self, link: Teller, job: Job, sample: SampleState, *, ticket: KVTicket | None, owes_facts: bool
    ) -> None:
        self._link = link
        self._job = job
        self._sample = sample
        self._ticket = ticket
        self._owes_facts = owes_facts
        self._started_s = perf_counter()
        self._last_s: float | None = None
        self._last: TokenOutput | None = None
        self._num_cached: int | None = None
        self.has_begun = False  # the engine answers

    @property
    def is_waiting(self) -> bool:
        """For the first token."""
        return self._last_s is None

    def heard(self, piece: Piece) -> None:
        self.has_begun = self._job.has_begun = True
        if piece.num_cached_tokens is not None:
            self._num_cached = piece.num_cached_tokens
        if self._last is not None or not (piece.tokens or piece.finish_reason):
            return
        now_s, job, sample = perf_counter(), self._job, self._sample
        facts = self._first_facts(now_s - self._started_s) if self._last_s is None and self._owes_facts else None
        self._link.note_tokens(len(piece.tokens), None if self._last_s is None else now_s - self._last_s)
        self._last_s = now_s
        job.num_prefill_tokens, job.is_decoding = 0, True
        sample.output_token_ids.extend(token.token_id for token in piece.tokens)
        output = TokenOutput(job.request.request_id, sample.sample_index, piece.tokens, piece.finish_reason, facts)
        if piece.finish_reason is not None:
            self._last = output
        else:
            self._link.tell_output(output)

    def ended(self) -> None:
        """Raises EngineFailed if it ended before its end was said."""
        job, last = self._job, self._last
        if last is None:
            raise EngineFailed("its stream ended before its end was said")
        if last.finish_reason in (FinishReason.ABORT, FinishReason.ERROR):
            raise EngineFailed(f"it gave the request up ({last.finish_reason})")
        if self._owes_facts and self._num_cached is not None:
            last = last._replace(facts=self._exact_facts(self._num_cached))
        job.num_unfinished -= 1
        if not job.num_unfinished:
            self._link.over(job)
        self._link.tell_output(last)

    def _first_facts(self, took_s: float) -> PrefillFacts:
        """Hits of a whole request are known for sure with its last token only: until then, what events told."""
        if self._ticket is not None and self._ticket.facts is not None:
            return self._ticket.facts
        num_prompt_tokens = len(self._job.request.prompt_token_ids)
        num_cached = self._num_cached
        if num_cached is None:
            num_cached = self._link.num_hit_tokens(self._job.request)
        if self._ticket is None:
            self._link.note_prompt(num_prompt_tokens - num_cached, self._started_s)
        return self._facts(self._link.worker_id, num_cached, took_s)

    def _exact_facts(self, num_cached: int) -> PrefillFacts:
        known = self._ticket.facts if self._ticket is not None else None
        if known is not None:
            return self._facts(known.worker_id, num_cached, known.prefill_s)
        return self._facts(self._link.worker_id, num_cached, 0.0)

    def _facts(self, worker_id: WorkerId, num_cached: int, prefill_s: float) -> PrefillFacts:
        return PrefillFacts(
            worker_id=worker_id,
            num_prompt_tokens=len(self._job.request.prompt_token_ids),
            num_cached_tokens=num_cached,
            queue_s=0.0,
            prefill_s=prefill_s,
        )


def words_of(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return error.message if isinstance(error, RelevoError) else str(error) or type(error).__name__
