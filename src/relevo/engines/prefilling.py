"""The prefill half of a handoff: one token of no interest is asked for, and what comes with it is a ticket."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from time import perf_counter

from relevo.core.baton import KVTicket, PrefillFacts
from relevo.core.errors import HandoffFailed, RelevoError
from relevo.engines.asks import ask_for
from relevo.engines.pool import Open
from relevo.engines.telling import ENGINE_FAILURES, Job, Teller, words_of
from relevo.policy.handoff.dialects import answer_of, cached_tokens_of, packed
from relevo.wire import messages as wire

log = logging.getLogger("relevo.gateway")


class Prefilling:
    """For one link."""

    def __init__(self, link: Teller) -> None:
        self._link = link

    async def run(self, job: Job) -> None:
        """Not cancelled by an abort of the request: see `_drop`."""
        try:
            opened = await self._link.pool.draw(self._link.peer)
        except (*ENGINE_FAILURES, RelevoError) as error:
            self._link.fail(job, HandoffFailed(f"its bootstrap server does not answer: {error}"))
            return
        is_concurrent = opened.handoff.dialect.is_concurrent
        if is_concurrent:
            ticket = KVTicket(name=opened.handoff.name, fields=packed(opened.handoff.for_decode()), use_by_ns=None)
            opened.end_prefill = partial(self._abort_half, job)
            self._link.pool.issue(opened, ticket)
            self._link.over(job)
            self._link.tell(wire.PrefillDone(job.request.request_id, len(job.request.prompt_token_ids), 0, 0.0, ticket))
        work = self._link.pool.spawn(self._prefill(job, opened))
        if not is_concurrent:
            await asyncio.shield(work)

    def _abort_half(self, job: Job) -> None:
        self._link.pool.spawn(self._link.peer.client.abort(job.names))

    async def _prefill(self, job: Job, opened: Open) -> None:
        peer, pool, request = self._link.peer, self._link.pool, job.request
        handoff, name = opened.handoff, self._link.pool.name()
        ask = ask_for(request, peer, name, fields=handoff.for_prefill(), prompt_only=True)
        opened.ask = ask
        job.names.append(name)
        asked_at_ns, asked_at_s = pool.clock.now_ns(), perf_counter()
        peer.num_open += 1
        try:
            answer = await peer.client.answer(ask, pool.prefill_s)
        except ENGINE_FAILURES as error:
            await self._prefill_failed(job, opened, error)
            return
        finally:
            peer.num_open -= 1
            job.num_prefill_tokens = 0
        took_s = perf_counter() - asked_at_s
        opened.end_prefill = None
        if handoff.dialect.is_concurrent:
            return
        fields, why = answer_of(handoff.dialect, answer)
        if why and (job.is_aborted or self._link.has_ended):  # it was aborted before it had a ticket to give
            pool.end(handoff.name)
            return
        num_prompt_tokens = len(request.prompt_token_ids)
        num_cached = cached_tokens_of(handoff.dialect, fields) or 0
        self._link.note_prompt(num_prompt_tokens - num_cached, asked_at_s)
        facts = PrefillFacts(
            worker_id=self._link.worker_id,
            num_prompt_tokens=num_prompt_tokens,
            num_cached_tokens=num_cached,
            queue_s=0.0,
            prefill_s=took_s,
        )
        ticket = KVTicket(
            name=handoff.name,
            fields=b"" if why else packed(handoff.for_decode(fields)),
            use_by_ns=peer.lease.use_by_ns(pool.moments.not_before_ns(asked_at_ns)),
            facts=facts,
        )
        if why:
            pool.metrics.engine_handoff(pool.model, "no_ticket")
            peer.why_not_paired = why
            log.error("%s hands nothing over: %s; the prompt is computed where it is decoded", peer.spec.worker_id, why)
            pool.end(handoff.name)
        elif ticket.is_good(pool.clock.now_ns()):
            pool.issue(opened, ticket)
        else:
            pool.metrics.engine_handoff(pool.model, "late")
            pool.end(handoff.name)
        if job.is_aborted or self._link.has_ended:
            pool.give_back(handoff.name)
            return
        self._link.over(job)
        self._link.tell(wire.PrefillDone(request.request_id, num_prompt_tokens, 0, 0.0, ticket))

    async def _prefill_failed(self, job: Job, opened: Open, error: Exception) -> None:
        name = opened.handoff.name
        if opened.handoff.dialect.is_concurrent:
            self._link.pool.failed(name, words_of(error))
        else:
            self._link.pool.end(name)
        if isinstance(error, TimeoutError):
            await self._link.peer.client.abort(job.names)
        if not await self._link.is_there(error):
            return
        if not opened.handoff.dialect.is_concurrent and not job.is_aborted:
            self._link.fail(job, error)
