"""The decode half of a handoff, and whole requests: streams to their end."""

from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from relevo.core.baton import KVTicket, SampleState
from relevo.engines.asks import ask_for
from relevo.engines.telling import ENGINE_FAILURES, Job, Teller, Telling, words_of
from relevo.engines.words import EngineFailed
from relevo.policy.handoff.dialects import unpacked

log = logging.getLogger("relevo.gateway")

SILENCE_S = 600.0  # of a stream; the gateway's own limits are shorter


class Decoding:
    """For one link."""

    def __init__(self, link: Teller) -> None:
        self._link = link

    async def with_ticket(self, job: Job, ticket: KVTicket) -> None:
        """With the KV that the ticket names, while it is good; else, or if that fails at its beginning, without."""
        pool, is_concurrent = self._link.pool, self._link.peer.spec.handoff.is_concurrent
        sample, outcome = SampleState(0), "late"
        halves_failed = asyncio.Event()
        if ticket.is_good(pool.clock.now_ns()) and pool.redeem(ticket, lambda why: halves_failed.set()):
            job.ticket_name = ticket.name
            try:
                outcome = await self._decode_with(job, sample, ticket, halves_failed)
            except ENGINE_FAILURES as error:
                if sample.output_token_ids:
                    if await self._link.is_there(error):
                        self._link.fail(job, error)
                    return
                if isinstance(error, EngineFailed) and error.is_final and not is_concurrent:
                    pool.give_back(ticket.name, is_redeemed=True)  # it fetched nothing
                    self._link.fail(job, error)
                    return
                if not await self._link.is_there(error):
                    return
                outcome = "failed"
                log.warning("%s: a handoff failed: %s", self._link.peer.spec.worker_id, words_of(error))
            except asyncio.CancelledError:
                if not job.has_begun:  # the engine may never have heard of it
                    pool.give_back(ticket.name, is_redeemed=True)
                raise
            finally:
                if not pool.is_given_back(ticket.name):
                    pool.end(ticket.name)
                job.ticket_name = ""
        else:
            pool.give_back(ticket.name)
        pool.metrics.engine_handoff(pool.model, outcome)
        if outcome != "completed" and not job.is_aborted:
            job.num_prefill_tokens = len(job.request.prompt_token_ids)
            await self.whole(job, sample, owes_facts=True)

    async def _decode_with(self, job: Job, sample: SampleState, ticket: KVTicket, halves_failed: asyncio.Event) -> str:
        """Outcome of the handoff. Raises as `_stream`."""
        streaming = asyncio.ensure_future(
            self._stream(job, sample, unpacked(ticket.fields), ticket=ticket, owes_facts=True)
        )
        failing = asyncio.ensure_future(halves_failed.wait())
        try:
            await asyncio.wait((streaming, failing), return_when=asyncio.FIRST_COMPLETED)
            if not streaming.done() and not sample.output_token_ids:
                return "half_failed"
            return "completed" if await streaming else "late"
        finally:
            failing.cancel()
            if not streaming.done():
                streaming.cancel()
                await asyncio.gather(streaming, return_exceptions=True)
                await self._link.peer.client.abort(job.names)

    async def whole(self, job: Job, sample: SampleState, *, owes_facts: bool) -> None:
        try:
            if self._link.peer.spec.handoff.decodes_alone or self._link.peer.spec.role == "unified":
                await self._stream(job, sample, {}, owes_facts=owes_facts)
            else:
                await self._run_pair(job, sample, owes_facts=owes_facts)
        except ENGINE_FAILURES as error:
            if await self._link.is_there(error):
                self._link.fail(job, error)

    async def _run_pair(self, job: Job, sample: SampleState, *, owes_facts: bool) -> None:
        """For an engine that computes no prompt, not even to go on where another left off."""
        prefills = self._link.pool.others("prefill")
        if not prefills:
            raise EngineFailed("no prefill engine is ready, and this engine computes no prompt")
        prefill = prefills[0]
        opened = await self._link.pool.draw(prefill)
        name, failed = self._link.pool.name(), asyncio.Event()
        whole = replace(job.request, prompt_token_ids=(*job.request.prompt_token_ids, *sample.output_token_ids))
        ask = ask_for(whole, prefill, name, fields=opened.handoff.for_prefill(), prompt_only=True)

        async def first_half() -> None:
            try:
                await prefill.client.answer(ask, self._link.pool.prefill_s)
            except ENGINE_FAILURES:
                failed.set()

        half = self._link.pool.spawn(first_half())
        num_before = len(sample.output_token_ids)
        streaming = asyncio.ensure_future(
            self._stream(job, sample, opened.handoff.for_decode(), owes_facts=owes_facts, is_bounded=True)
        )
        failing = asyncio.ensure_future(failed.wait())
        try:
            await asyncio.wait((streaming, failing), return_when=asyncio.FIRST_COMPLETED)
            if not streaming.done() and len(sample.output_token_ids) == num_before:
                raise EngineFailed(f"the prompt's half on {prefill.spec.worker_id} failed")
            await streaming
        finally:
            failing.cancel()
            self._link.pool.end(opened.handoff.name)
            if not streaming.done():
                streaming.cancel()
                await asyncio.gather(streaming, return_exceptions=True)
                await self._link.peer.client.abort(job.names)
            if not half.done():
                half.cancel()
                self._link.pool.spawn(prefill.client.abort([name]))

    async def _stream(
        self,
        job: Job,
        sample: SampleState,
        fields: dict[str, Any],
        *,
        ticket: KVTicket | None = None,
        owes_facts: bool = False,
        is_bounded: bool = False,
    ) -> bool:
        """One continuation to its end; what comes is told. False: the ticket was too old when the engine had it."""
        peer = self._link.peer
        ask = ask_for(job.request, peer, self._link.pool.name(), sample=sample, fields=fields)
        job.names.append(ask.name)
        telling = Telling(self._link, job, sample, ticket=ticket, owes_facts=owes_facts)
        peer.num_open += 1
        try:
            async with (
                asyncio.timeout(
                    self._link.pool.step_s if ticket is not None or is_bounded else None
                ) as until_first_token,
                aclosing(peer.client.stream(ask, SILENCE_S)) as pieces,
            ):
                async for piece in pieces:
                    if (
                        not telling.has_begun
                        and ticket is not None
                        and not ticket.is_good(self._link.pool.clock.now_ns())
                    ):
                        peer.distrust_cache()
                        await peer.client.abort([ask.name])
                        return False
                    telling.heard(piece)
                    if not telling.is_waiting:
                        until_first_token.reschedule(None)
        finally:
            peer.num_open -= 1
        telling.ended()
        return True
