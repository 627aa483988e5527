"""The engines of one model as one gateway knows them: which there are, whether they fit each other, and the handoffs
that are open between them.

A handoff is open from the ask of the prefill engine until both sides are done with it. It is always ended on both: the
KV of a ticket that is not used is fetched and thrown away, the other half of a failed one is aborted.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, Protocol

from relevo.client.http import CLIENT_ERRORS
from relevo.core.baton import KVTicket
from relevo.core.errors import RelevoError, WorkerError
from relevo.core.ports import Clock
from relevo.core.request import SamplingParams
from relevo.core.urls import authority
from relevo.engines.client import EngineClient
from relevo.engines.moments import Moments
from relevo.engines.spec import EngineSpec, peer_of
from relevo.engines.words import EngineAsk, EngineFacts, NotFitting
from relevo.policy.handoff.dialects import Binding, Handoff, LeaseClock, answer_of, unpacked

log = logging.getLogger("relevo.gateway")

REDEEM_S = 3.0  # arbitrary: a decode engine is asked in the turn of the event loop after the answer
GIVE_BACK_S = 10.0  # arbitrary
UNBOUND = Binding()
_FAILURES = (*CLIENT_ERRORS, RelevoError)


class EngineMetrics(Protocol):
    def engine_handoff(self, model: str, outcome: str) -> None: ...

    def engine_pairs(self, model: str, num_paired: int, num_unpaired: int) -> None: ...


class NoMetrics:
    def engine_handoff(self, model: str, outcome: str) -> None:
        pass

    def engine_pairs(self, model: str, num_paired: int, num_unpaired: int) -> None:
        pass


@dataclass(slots=True, eq=False)
class Peer:
    """An engine that was reached and fits."""

    spec: EngineSpec
    client: EngineClient
    facts: EngineFacts
    binding: Binding = UNBOUND
    num_open: int = 0  # asks
    why_not_paired: str = "no handoff was tried yet"  # empty: one worked

    num_distrusts: int = 0  # how often its cache was given up

    def distrust_cache(self) -> None:
        """It may have fetched another request's KV: nothing that lies in its cache is asked for again."""
        self.num_distrusts += 1
        log.error("%s was asked too late for KV: its cache is not used any more", self.spec.worker_id)

    def salted(self, salt: bytes) -> str:
        """As the engine is told it."""
        return f"{salt.hex()}.{self.num_distrusts}" if self.num_distrusts else salt.hex()

    @property
    def model(self) -> str:
        return self.spec.model or (self.facts.served_names[0] if self.facts.served_names else self.facts.model)

    @property
    def lease(self) -> LeaseClock:
        return LeaseClock(lease_s=self.spec.lease_s or self.spec.handoff.lease_s)


@dataclass(slots=True)
class Open:
    """One handoff."""

    handoff: Handoff
    prefill: Peer
    ask: EngineAsk | None = None  # of the prefill engine
    ticket: KVTicket | None = None
    is_redeemed: bool = False
    is_given_back: bool = False  # it ends by itself
    failure: str = ""  # of the prefill half
    on_failure: Callable[[str], None] | None = None
    end_prefill: Callable[[], None] | None = None  # where that half may still run
    timer: asyncio.TimerHandle | None = None


@dataclass(slots=True)
class EnginePool:
    """`model`: for metrics and log lines."""

    model: str
    clock: Clock
    moments: Moments
    metrics: EngineMetrics = field(default_factory=NoMetrics)
    rng: Random = field(default_factory=Random)
    prefill_s: float = 300.0  # longest wait for a prefill engine's answer
    step_s: float = 30.0  # longest wait for a first token once the KV is there, or where both were asked at once
    peers: dict[str, Peer] = field(default_factory=dict)
    _open: dict[str, Open] = field(default_factory=dict)
    _tasks: set[asyncio.Task[Any]] = field(default_factory=set)
    _ticking: asyncio.Task[None] | None = None

    # ---- who is there ------------------------------------------------------------------------------------------------

    def add(self, peer: Peer) -> None:
        """Raises NotFitting, in one sentence, if it cannot be in a pool with those that are there."""
        spec, facts = peer.spec, peer.facts
        for other in self.peers.values():
            why = facts.mismatch(other.facts) if other.spec.worker_id != spec.worker_id else ""
            if why:
                raise NotFitting(
                    f"{spec.worker_id} ({spec.url}) and {other.spec.worker_id} ({other.spec.url}) cannot hand KV to "
                    f"each other: {why}; run the same engine with the same settings on both"
                )
        self.peers[spec.worker_id] = peer

    def remove(self, peer: Peer) -> None:
        if self.peers.get(peer.spec.worker_id) is peer:
            del self.peers[peer.spec.worker_id]
        self.count_pairs()

    def count_pairs(self) -> None:
        with_role = [each for each in self.peers.values() if each.spec.role != "unified"]
        num_paired = sum(1 for each in with_role if not each.why_not_paired)
        self.metrics.engine_pairs(self.model, num_paired, len(with_role) - num_paired)

    def others(self, role: str) -> list[Peer]:
        """The least busy first."""
        return sorted((each for each in self.peers.values() if each.spec.role == role), key=lambda each: each.num_open)

    # ---- handoffs ----------------------------------------------------------------------------------------------------

    async def draw(self, prefill: Peer) -> Open:
        """A new one. Raises what asking the prefill engine's bootstrap server raises."""
        if prefill.spec.handoff.requires_peer_binding and not prefill.binding.is_known:
            prefill.binding = await self._bound(prefill)
        number = self.rng.getrandbits(63)
        handoff = Handoff(dialect=prefill.spec.handoff, number=number, binding=prefill.binding)
        while handoff.name in self._open:
            handoff = Handoff(dialect=handoff.dialect, number=self.rng.getrandbits(63), binding=prefill.binding)
        opened = self._open[handoff.name] = Open(handoff, prefill)
        return opened

    async def _bound(self, prefill: Peer) -> Binding:
        host, port = peer_of(prefill.spec)
        address = f"http://{authority(host, port)}"
        shown = f"[{host}]" if ":" in host else host
        if prefill.spec.engine != "vllm":
            return Binding(address=address, host=shown, port=port)
        told = await prefill.client.get_json(f"{address}/query")
        try:
            first = told[min(told, key=int)]
            return Binding(engine_id=str(first["engine_id"]), address=address, host=shown, port=port)
        except (KeyError, TypeError, ValueError) as error:
            raise WorkerError(f"{address}/query names no engine") from error

    def issue(self, opened: Open, ticket: KVTicket) -> None:
        """It goes to a decode engine; if none takes it soon, it is given back."""
        opened.ticket = ticket
        opened.timer = asyncio.get_running_loop().call_later(REDEEM_S, self.give_back, ticket.name)

    def redeem(self, ticket: KVTicket, on_failure: Callable[[str], None]) -> bool:
        """A decode engine is about to use it. False: it must not. `on_failure(why)`: the prefill half broke down."""
        opened = self._open.get(ticket.name)
        if opened is None or opened.is_redeemed or opened.failure:
            return False
        opened.is_redeemed, opened.on_failure = True, on_failure
        if opened.timer is not None:
            opened.timer.cancel()
        return True

    def failed(self, name: str, why: str) -> None:
        """The prefill half broke down: its other half ends at once."""
        opened = self._open.get(name)
        if opened is None:
            return
        opened.failure, opened.end_prefill = why, None
        if opened.on_failure is not None:
            opened.on_failure(why)

    def end(self, name: str) -> None:
        """Both sides are done, or the decode side is and the prefill half must not go on."""
        opened = self._open.pop(name, None)
        if opened is None:
            return
        if opened.timer is not None:
            opened.timer.cancel()
        if opened.end_prefill is not None:
            opened.end_prefill()

    def is_given_back(self, name: str) -> bool:
        opened = self._open.get(name)
        return opened is not None and opened.is_given_back

    def give_back(self, name: str, *, is_redeemed: bool = False) -> None:
        """No decode engine will use the ticket: its KV is fetched and thrown away, for nothing else frees it before
        its lease ends. It is fetched under a salt of its own, so that no request ever finds it."""
        opened = self._open.get(name)
        if opened is None or opened.is_given_back or opened.is_redeemed is not is_redeemed:
            return
        ticket, opened.is_redeemed = opened.ticket, True
        if opened.handoff.dialect.is_concurrent or ticket is None:
            self.end(name)
            return
        if not ticket.is_good(self.clock.now_ns()):
            self.metrics.engine_handoff(self.model, "late")
            self.end(name)
            return
        opened.is_given_back = True
        self.spawn(self._fetch_and_drop(opened, ticket))

    async def _fetch_and_drop(self, opened: Open, ticket: KVTicket) -> None:
        try:
            for peer in self.others("decode")[:2]:
                assert opened.ask is not None
                ask = replace(
                    opened.ask, name=self.name(), model=peer.model, salt=self.name(), fields=unpacked(ticket.fields)
                )
                with contextlib.suppress(*_FAILURES):
                    await peer.client.answer(ask, GIVE_BACK_S)
                    self.metrics.engine_handoff(self.model, "given_back")
                    return
        finally:
            self.end(opened.handoff.name)

    @property
    def num_open(self) -> int:
        return len(self._open)

    # ---- small things ------------------------------------------------------------------------------------------------

    def name(self) -> str:
        """Of an ask: drawn by us, never a client's."""
        return f"relevo-{self.rng.getrandbits(96):024x}"

    def start(self) -> None:
        """Idempotent; within an event loop."""
        if self._ticking is None or self._ticking.done():
            self._ticking = self.spawn(self.moments.run())

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Kept until it is done; its failure is logged."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    async def close(self) -> None:
        """All that is under way is cancelled."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("work for an engine broke off", exc_info=error)

    # ---- a real handoff ----------------------------------------------------------------------------------------------

    async def try_pair(self, prefill: Peer, decode: Peer) -> str:
        """One real handoff from one to the other. Why it failed; empty: it worked."""
        vocab, length = max(8, prefill.spec.vocab_size), prefill.spec.block_size * 2 + 1
        prompt = tuple(self.rng.randrange(vocab) for _ in range(length))
        try:
            opened = await self.draw(prefill)
        except _FAILURES as error:
            return f"{prefill.spec.worker_id}'s bootstrap server does not answer: {_words(error)}"
        try:
            return await self._try_pair(opened, decode, prompt)
        finally:
            self.end(opened.handoff.name)

    async def _try_pair(self, opened: Open, decode: Peer, prompt: tuple[int, ...]) -> str:
        prefill, handoff = opened.prefill, opened.handoff
        first = probe_ask(prefill, self.name(), prompt, handoff.for_prefill())
        where = f"from {prefill.spec.worker_id} to {decode.spec.worker_id}"
        if handoff.dialect.is_concurrent:
            second = probe_ask(decode, self.name(), prompt, handoff.for_decode())
            halves = [(prefill, first), (decode, second)]
            asks = [asyncio.ensure_future(peer.client.answer(ask, self.step_s)) for peer, ask in halves]
            done, waiting = await asyncio.wait(asks, return_when=asyncio.FIRST_EXCEPTION)
            for task, (peer, ask) in zip(asks, halves, strict=True):
                if task in waiting:
                    task.cancel()
                    await peer.client.abort([ask.name])
            await asyncio.gather(*waiting, return_exceptions=True)
            errors = [task.exception() for task in done if task.exception() is not None]
            if errors and not isinstance(errors[0], _FAILURES):
                raise errors[0] or AssertionError
            return f"a handoff {where} failed: {_words(errors[0])}" if errors else ""
        try:
            asked_at_ns = self.clock.now_ns()
            fields, why = answer_of(handoff.dialect, await prefill.client.answer(first, self.step_s))
            if why:
                return f"{prefill.spec.worker_id} hands nothing over: {why}"
            use_by_ns = prefill.lease.use_by_ns(self.moments.not_before_ns(asked_at_ns))
            if use_by_ns is not None and self.clock.now_ns() >= use_by_ns:
                return f"a handoff {where} came too late for its lease"
            await decode.client.answer(probe_ask(decode, self.name(), prompt, handoff.for_decode(fields)), self.step_s)
        except _FAILURES as error:
            return f"a handoff {where} failed: {_words(error)}"
        return ""


_GREEDY = SamplingParams(max_tokens=1, seed=0, temperature=0.0)


def probe_ask(peer: Peer, name: str, prompt: tuple[int, ...], fields: dict[str, Any]) -> EngineAsk:
    return EngineAsk(name=name, model=peer.model, token_ids=prompt, sampling=_GREEDY, max_tokens=1, fields=fields)


def _words(error: object) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return error.message if isinstance(error, RelevoError) else str(error)
