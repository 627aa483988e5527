"""A gateway's link to one engine: the messages of a worker, carried out over HTTP.

A whole request is one stream per continuation. Of a split one the prefill engine gives a ticket and the decode engine
fetches the KV with it; that one is asked for all that the client asked for, so what it says is what it would have said
alone. It is asked only while the ticket is good; where it is not, or the handoff fails before the first token, it
computes the prompt itself. Both halves are ended, whatever comes.

An engine grants no room: `Reserve` is answered at once, and holds nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Container, Sequence
from functools import partial
from time import perf_counter

from relevo.client.http import CLIENT_ERRORS
from relevo.core.baton import KVTicket, SampleState
from relevo.core.errors import HandoffFailed, InvalidRequest, RelevoError, WorkerError, WorkerLost
from relevo.core.events import StepCounters, TokenOutput, WorkerLoad
from relevo.core.ids import BlockHash, RequestId, WorkerId
from relevo.core.kv import Reservation
from relevo.core.request import EngineRequest
from relevo.engines.asks import why_refused
from relevo.engines.costs import SeenCosts
from relevo.engines.decoding import Decoding
from relevo.engines.kv_events import Follower
from relevo.engines.pool import EnginePool, Peer
from relevo.engines.prefilling import Prefilling
from relevo.engines.telling import ENGINE_FAILURES, Job, words_of
from relevo.engines.words import EngineFailed, EngineLoad
from relevo.policy.worker.prefix_cache import prompt_hashes
from relevo.wire import messages as wire

log = logging.getLogger("relevo.gateway")

WATCH_S = 2.0  # arbitrary: how often its load is asked for
ALIVE_S = 2.0  # arbitrary: an engine that does not answer so long after a stream broke is gone


class EngineLink:
    """See `orchestrator.ports.AwaitedLink`. `hello` is made by `engines.opening`, after a token came over `peer`."""

    def __init__(self, hello: wire.Hello, peer: Peer, pool: EnginePool) -> None:
        self.hello = hello
        self.peer = peer
        self.pool = pool
        self._jobs: dict[RequestId, Job] = {}
        self._messages: deque[wire.ToGateway | list[TokenOutput]] = deque()
        self._has_news = asyncio.Event()
        self._end_reason = ""
        self._is_leaving = False
        self._costs = SeenCosts()
        self._told = EngineLoad()
        self._num_generated = 0
        self._num_prefilled = 0
        self._num_steps = 0
        self.cached: Container[BlockHash] = frozenset()  # as its events tell
        self._prefilling, self._decoding = Prefilling(self), Decoding(self)
        self._follower: Follower | None = None
        self._kept = [pool.spawn(self._watch())]  # for as long as the link is there

    # ---- towards the gateway -----------------------------------------------------------------------------------------

    async def receive(self) -> wire.ToGateway:
        """What arrived on all streams since the last call is one StepOutputs."""
        while not self._messages:
            if self._end_reason:
                raise WorkerLost(self._end_reason)
            self._has_news.clear()
            await self._has_news.wait()
        message = self._messages.popleft()
        if not isinstance(message, list):
            return message
        self._num_steps += 1
        return wire.StepOutputs(tuple(message), self._load(), self._counters())

    @property
    def worker_id(self) -> WorkerId:
        return self.hello.worker_id

    @property
    def has_ended(self) -> bool:
        return bool(self._end_reason)

    def close(self) -> None:
        self.end("this gateway closed the connection")

    def end(self, reason: str) -> None:
        """Idempotent. What runs there for this gateway is aborted; nothing is waited for."""
        if self._end_reason:
            return
        self._end_reason = reason
        for task in self._kept:
            task.cancel()
        for job in list(self._jobs.values()):
            self._let_go(job)
        self.pool.remove(self.peer)
        self.pool.spawn(self._close(list(self._jobs.values())))
        self._jobs.clear()
        self._has_news.set()

    def keep(self, task: asyncio.Task[None]) -> None:
        """It ends with the link."""
        self._kept.append(task)

    def follow_with(self, follower: Follower) -> None:
        """It tells what the engine has cached."""
        self._follower, self.cached = follower, follower.book.held
        follower.on_restart = partial(self.end, "another process tells what is cached at its address")
        self.keep(self.pool.spawn(follower.run()))

    async def _close(self, jobs: Sequence[Job]) -> None:
        names = [name for job in jobs for name in job.names]
        try:
            if names:
                await self.peer.client.abort(names)
        finally:
            await self.peer.client.close()

    def tell(self, message: wire.ToGateway) -> None:
        self._messages.append(message)
        self._has_news.set()

    def tell_output(self, output: TokenOutput) -> None:
        last = self._messages[-1] if self._messages else None
        if isinstance(last, list):
            last.append(output)
        else:
            self._messages.append([output])
        self._has_news.set()

    # ---- from the gateway --------------------------------------------------------------------------------------------

    def send(self, message: wire.ToWorker) -> None:
        if self._end_reason:
            raise WorkerLost(self._end_reason)
        match message:
            case wire.Submit(request=request, samples=samples):
                self._begin(request, samples)
            case wire.Reserve(request=request):
                self._reserve(request)
            case wire.ComputeReserved(request_id=request_id, samples=samples):
                self._whole(self._jobs[request_id], samples)
            case wire.StartDecode(baton=baton):
                self._start_decode(self._jobs[baton.request_id], baton.ticket)
            case wire.Prefill(request=request):
                self._start_prefill(request)
            case wire.Abort(request_id=request_id):
                self._abort(request_id)
            case wire.Fence():
                self.tell(wire.Fenced(message.worker_id, message.epoch, message.nonce))
            case wire.Ping(nonce=nonce):
                self.pool.spawn(self._answer_ping(nonce))
            case wire.FollowCache():
                self._follow_cache()
            case wire.Drain():
                self._is_leaving = True
                self.tell(wire.Leaving())
            case wire.Release() | wire.SealBlocks():
                pass  # it reserves no blocks
            case wire.SetRole():
                log.warning("%s keeps its role: an engine has one for life", self.peer.spec.worker_id)

    def _refused(self, request: EngineRequest) -> bool:
        error = why_refused(request, self.peer)
        if error is not None:
            self.tell(wire.Refused(request.request_id, error.code, error.message))
        return error is not None

    def _reserve(self, request: EngineRequest) -> None:
        if self._refused(request):
            return
        self._jobs[request.request_id] = Job(request)
        self.tell(
            wire.Reserved(
                Reservation(
                    request_id=request.request_id,
                    worker_id=self.hello.worker_id,
                    epoch=self.hello.epoch,
                    block_size=self.hello.layout.block_size,
                    block_ids=(),
                    generations=(),
                    num_hit_tokens=self.num_hit_tokens(request),
                )
            )
        )

    def _begin(self, request: EngineRequest, samples: Sequence[SampleState]) -> None:
        if not self._refused(request):
            job = self._jobs[request.request_id] = Job(request)
            self._whole(job, samples)

    def _whole(self, job: Job, samples: Sequence[SampleState]) -> None:
        """`samples`: emitted before, here or elsewhere."""
        told = {each.sample_index: each for each in samples}
        job.num_prefill_tokens = len(job.request.prompt_token_ids)
        for index in range(job.request.sampling.n):
            sample = told.get(index) or SampleState(index)
            if sample.finish_reason is None:
                job.num_unfinished += 1
                owes_facts = index == 0 and not any(each.output_token_ids for each in samples)
                job.tasks.append(self.pool.spawn(self._decoding.whole(job, sample, owes_facts=owes_facts)))

    def _start_decode(self, job: Job, ticket: KVTicket | None) -> None:
        assert ticket is not None, "an engine hands over with a ticket"
        job.num_unfinished = 1
        job.tasks.append(self.pool.spawn(self._decoding.with_ticket(job, ticket)))

    def _start_prefill(self, request: EngineRequest) -> None:
        request_id = request.request_id
        job = self._jobs[request_id] = Job(request)
        if request.sampling.n > 1:  # one ticket is fetched once
            nothing = KVTicket(name="", fields=b"", use_by_ns=None)
            self.over(job)
            self.tell(wire.PrefillDone(request_id, 0, 0, 0.0, nothing))
            return
        job.num_prefill_tokens = len(request.prompt_token_ids)
        job.tasks.append(self.pool.spawn(self._prefilling.run(job)))

    def _abort(self, request_id: RequestId) -> None:
        job = self._jobs.get(request_id)
        if job is None:
            self.tell(wire.Dropped(request_id))
        elif not job.is_aborted:
            job.is_aborted = True
            self.pool.spawn(self._drop(job))

    async def _drop(self, job: Job) -> None:
        """A prompt that is being computed is not left alone: its answer may be a ticket, which must be given back."""
        self._let_go(job)
        if job.names:
            await self.peer.client.abort(job.names)
        self.over(job)
        self.tell(wire.Dropped(job.request.request_id))

    def _let_go(self, job: Job) -> None:
        for task in job.tasks:
            task.cancel()
        if job.ticket_name and job.has_begun:
            self.pool.end(job.ticket_name)

    def over(self, job: Job) -> None:
        if self._jobs.get(job.request.request_id) is job:
            del self._jobs[job.request.request_id]

    # ---- what its streams need ---------------------------------------------------------------------------------------

    def note_prompt(self, num_computed_tokens: int, begun_s: float) -> None:
        self._num_prefilled += num_computed_tokens
        self._costs.prompt_took(num_computed_tokens, begun_s, perf_counter())

    def note_tokens(self, num_tokens: int, gap_s: float | None) -> None:
        self._num_generated += num_tokens
        if gap_s is not None:
            self._costs.gap_took(num_tokens, gap_s)

    def num_hit_tokens(self, request: EngineRequest) -> int:
        """Of its prompt, as far as the engine told of its cache."""
        hashes = prompt_hashes(request, self.peer.spec.block_size)
        num_hits = next((i for i, key in enumerate(hashes) if key not in self.cached), len(hashes))
        return num_hits * self.peer.spec.block_size

    # ---- failures ----------------------------------------------------------------------------------------------------

    async def is_there(self, error: Exception) -> bool:
        """After a failure. If not, the link ends, and with it all that ran there."""
        if self._end_reason:
            return False
        if isinstance(error, EngineFailed) and error.status and error.status < 500:
            return True
        try:
            if await self.peer.client.is_healthy(ALIVE_S):
                return True
            reason = "its /health says that it cannot go on"
        except CLIENT_ERRORS as found:
            reason = f"it does not answer: {words_of(found)}"
        self.end(reason)
        return False

    def fail(self, job: Job, error: Exception) -> None:
        """The request's part here is over."""
        if self._jobs.get(job.request.request_id) is not job or job.is_aborted:
            return
        others = [task for task in job.tasks if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        if len(others):
            self.pool.spawn(self.peer.client.abort(job.names))
        self.over(job)
        request_id = job.request.request_id
        if isinstance(error, EngineFailed) and error.is_final:
            self.tell(wire.Refused(request_id, InvalidRequest.code, words_of(error)))
        else:
            code = HandoffFailed.code if isinstance(error, HandoffFailed) else WorkerError.code
            self.tell(wire.RequestFailed(request_id, code, words_of(error)))

    # ---- the engine itself -------------------------------------------------------------------------------------------

    async def _answer_ping(self, nonce: int) -> None:
        try:
            if await self.peer.client.is_healthy():
                self.tell(wire.Pong(nonce))
            else:
                self.end("its /health says that it cannot go on")
        except TimeoutError:
            pass  # silence is counted by membership
        except ConnectionError as error:
            self.end(f"it does not answer: {words_of(error)}")

    async def _watch(self) -> None:
        """Its load, and whether another process has taken its address."""
        while True:
            await asyncio.sleep(WATCH_S)
            try:
                told = await self.peer.client.load()
            except (*ENGINE_FAILURES, RelevoError):
                continue  # pings decide
            started_at = self.peer.facts.started_at
            if told.started_at and started_at and told.started_at != started_at:
                self.end("another process answers at its address")
                return
            self._told = told
            self.tell(wire.LoadReport(self._load(), self._counters()))

    def _follow_cache(self) -> None:
        if self._follower is None:
            self.tell(wire.CacheSnapshot(0, ()))
        else:
            self._follower.follow(self.tell)

    def _load(self) -> WorkerLoad:
        """What it said last, and what is open here: the larger is nearer to now."""
        running = sum(job.num_unfinished for job in self._jobs.values() if job.is_decoding)
        waiting = sum(1 for job in self._jobs.values() if job.num_prefill_tokens)
        num_blocks = self.peer.facts.num_blocks or 2**20
        num_held = min(num_blocks, round(self._told.cache_use * num_blocks))
        return WorkerLoad(
            num_running=max(running, self._told.num_running),
            num_waiting=max(waiting, self._told.num_waiting),
            num_waiting_prefill_tokens=sum(job.num_prefill_tokens for job in self._jobs.values()),
            num_decode_kv_tokens=sum(
                len(job.request.prompt_token_ids) for job in self._jobs.values() if job.is_decoding
            ),
            num_free_blocks=num_blocks - num_held,
            num_held_blocks=num_held,
            num_total_blocks=num_blocks,
            costs=self._costs.step_costs,
        )

    def _counters(self) -> StepCounters:
        told = self._told
        return StepCounters(
            num_steps=self._num_steps,
            num_prefill_tokens=max(self._num_prefilled, told.num_prompt_tokens),
            num_generation_tokens=max(self._num_generated, told.num_generation_tokens),
            num_preemptions=told.num_preemptions,
            num_prefix_queries=told.num_prefix_queries,
            num_prefix_hits=told.num_prefix_hits,
        )
