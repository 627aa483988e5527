"""Prefill workers on virtual time: real schedulers and caches, step times from a formula, routed by the gateway's own
`Placement`, or by several of them that gossip or do not. The decode side is idealised: it always has room and never
computes prompts."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from random import Random
from typing import Any, cast

from relevo.core.baton import SampledToken
from relevo.core.events import StepCosts, WorkerLoad
from relevo.core.handoff import KVEndpoint, KVPath, KVSite, Link, Reach
from relevo.core.ids import RequestId, WorkerId, WorkerRef
from relevo.core.kv import KVGroup, KVLayout, Reservation
from relevo.core.plan import StepPlan, StepResult
from relevo.core.request import EngineRequest, SamplingParams
from relevo.orchestrator.in_flight import InFlightRequest
from relevo.orchestrator.membership import Member
from relevo.orchestrator.placement import Placement
from relevo.policy.handoff import machine
from relevo.policy.handoff.state import HandoffLimits
from relevo.policy.routing.router import RoutingPolicy
from relevo.policy.routing.worker_choice import WorkerChooser
from relevo.policy.worker.prefix_cache import chain, prompt_hashes
from relevo.policy.worker.scheduler import Scheduler, SchedulerConfig
from relevo.wire import messages as wire

BLOCK_SIZE = 16
ONE_CORE = StepCosts(base_s=0.05, per_token_s=0.005, per_kv_token_s=2.5e-5)  # SmolLM2-135M in float32, docs/lab-log.md
LAYOUT = KVLayout("fake", "uint64", BLOCK_SIZE, (KVGroup.full([0], 1, 1),))
DECODE = WorkerRef(WorkerId("decode-0"), 1)


@dataclass
class FakeMembership:
    members: list[Member]

    def get(self, worker: WorkerRef) -> Member | None:
        return next((member for member in self.members if member.ref == worker), None)


def member(worker_id: str, role: str, load: WorkerLoad) -> Member:
    """Each in a box of its own."""
    site = KVSite(box_id=worker_id, arena_id="", endpoints=(KVEndpoint("tcp", worker_id, Reach.NETWORK),))
    hello = wire.Hello(1, WorkerId(worker_id), 1, 1, role, LAYOUT, "fake", 2**32, 2**20, site, load)
    return Member(WorkerId(worker_id), role, "", hello=hello, load=load, is_ready=True)


def placement_of(members: list[Member], policy: RoutingPolicy = RoutingPolicy.TTFT, seed: int = 0) -> Placement:
    placement = Placement(cast(Any, FakeMembership(members)), WorkerChooser(policy), BLOCK_SIZE, Random(seed))
    for each in members:
        placement.take_cache_report(each.ref, wire.CacheSnapshot(0, ()))
    return placement


def request_of(number: int, prompt: Sequence[int], session: bytes = b"") -> EngineRequest:
    return EngineRequest(
        request_id=RequestId(f"r{number}"),
        prompt_token_ids=tuple(prompt),
        sampling=SamplingParams(max_tokens=1, seed=0),
        session=session,
    )


def in_flight_of(request: EngineRequest) -> InFlightRequest:
    """For a placement that is driven by hand."""
    handoff = machine.start(
        request.request_id,
        num_prompt_tokens=len(request.prompt_token_ids),
        num_samples=request.sampling.n,
        block_size=BLOCK_SIZE,
        limits=HandoffLimits(),
    )
    return InFlightRequest(
        request=request,
        sink=cast(Any, None),
        handoff=handoff,
        end_with=lambda *told: None,
        prompt_hashes=prompt_hashes(request, BLOCK_SIZE),
    )


@dataclass
class PrefillWorker:
    member: Member
    scheduler: Scheduler
    step: StepPlan | None = None
    num_batches: int = 0
    num_computed_tokens: int = 0

    def reservation(self, request: EngineRequest) -> Reservation:
        num_blocks = -(-len(request.prompt_token_ids) // BLOCK_SIZE)
        return Reservation(
            request_id=request.request_id,
            worker_id=DECODE.worker_id,
            epoch=1,
            block_ids=tuple(range(num_blocks)),
            generations=(0,) * num_blocks,
            num_hit_tokens=0,
        )


@dataclass
class RoutingWorld:
    """`run` replays arrivals (time in seconds, prompt, session) and keeps the time to first token of each."""

    policy: RoutingPolicy
    num_workers: int = 4
    num_blocks: int = 1000
    costs: StepCosts = ONE_CORE
    abort_fraction: float = 0.0
    seed: int = 0
    num_gateways: int = 1  # each request comes to one of them at random
    gossip_delay_s: float | None = None  # None: they do not talk
    reports_between_steps: bool = False  # as workers do; otherwise loads are known at once
    ttft_s: list[float] = field(default_factory=list)
    reasons: Counter[str] = field(default_factory=Counter)
    num_input_tokens: int = 0
    num_cached_tokens: int = 0
    peak_skew: float = 0.0  # max/mean of prompt tokens on the way over workers, once every worker could be busy

    def __post_init__(self) -> None:
        self._rng = Random(self.seed)
        self.workers = [self._worker(index) for index in range(self.num_workers)]
        decode = member("decode-0", "decode", WorkerLoad(num_running=10**6, costs=self.costs))
        self.placements = [
            placement_of([*(w.member for w in self.workers), decode], self.policy, self.seed + index)
            for index in range(self.num_gateways)
        ]
        self.placement = self.placements[0]
        if self.gossip_delay_s is not None:
            for placement in self.placements:
                self._connect(placement)
        self._chosen_by: dict[RequestId, Placement] = {}
        self._now_s = 0.0
        self._events: list[tuple[float, int, str, Any]] = []
        self._order = count()
        self._open: dict[RequestId, tuple[PrefillWorker, float]] = {}

    def _connect(self, teller: Placement) -> None:
        """What it has to tell reaches the others after the delay, at most one batch per instant."""
        for other in self.placements:
            other.peer_state.take(str(self.placements.index(teller)), teller.change_log.snapshot())
        due: list[bool] = []

        def news(is_urgent: bool) -> None:
            if not due:
                due.append(True)
                self._at(self._now_s, "flush", (teller, due))

        teller.tell(news)

    def _flush(self, now_s: float, what: Any) -> None:
        teller, due = what
        due.clear()
        batch = teller.change_log.batch()
        if batch is not None:
            self._at(now_s + (self.gossip_delay_s or 0.0), "hear", (teller, batch))

    def _hear(self, now_s: float, what: Any) -> None:
        teller, batch = what
        for placement in self.placements:
            if placement is not teller:
                assert placement.peer_state.take(str(self.placements.index(teller)), batch)

    def _worker(self, index: int) -> PrefillWorker:
        config = SchedulerConfig(
            worker_id=WorkerId(f"prefill-{index}"),
            epoch=1,
            first_block_id=0,
            num_blocks=self.num_blocks,
            block_size=BLOCK_SIZE,
            max_batched_tokens=512,
            max_prefill_tokens=512,
            max_running=64,
            max_model_len=self.num_blocks * BLOCK_SIZE,
        )
        return PrefillWorker(member(config.worker_id, "prefill", WorkerLoad(costs=self.costs)), Scheduler(config))

    def run(self, arrivals: Sequence[tuple[float, Sequence[int], bytes]]) -> None:
        for number, (at_s, prompt, session) in enumerate(arrivals):
            self._at(at_s, "arrive", request_of(number, prompt, session))
        while self._events:
            now_s, _, kind, what = heapq.heappop(self._events)
            self._now_s = now_s
            getattr(self, f"_{kind}")(now_s, what)

    def _at(self, at_s: float, kind: str, what: Any) -> None:
        heapq.heappush(self._events, (at_s, next(self._order), kind, what))

    def _arrive(self, now_s: float, request: EngineRequest) -> None:
        placement = self._chosen_by[request.request_id] = self._rng.choice(self.placements)
        in_flight = in_flight_of(request)
        choice = placement.choose_decode(in_flight, ())
        assert choice is not None
        chosen = placement.choose_prefill(in_flight, choice.worker, len(request.prompt_token_ids), ())
        assert chosen.worker is not None
        self.reasons[chosen.reason.split(":")[0]] += 1
        worker = next(w for w in self.workers if w.member.ref == chosen.worker)
        rejected = worker.scheduler.prefill_into(
            request, worker.reservation(request), int(now_s * 1e9), path=KVPath("none", "", Link.BOX)
        )
        assert rejected is None, rejected
        self._open[request.request_id] = (worker, now_s)
        self._note_skew()
        self.num_input_tokens += len(request.prompt_token_ids)
        if self._rng.random() < self.abort_fraction:
            self._at(now_s + self._rng.expovariate(0.5), "abort", request.request_id)
        self._start_step(now_s, worker)

    def _abort(self, now_s: float, request_id: RequestId) -> None:
        found = self._open.pop(request_id, None)
        if found is not None:
            found[0].scheduler.abort(request_id, writer_active=False)
            self._publish(found[0])
            self._chosen_by[request_id].end(request_id)
            self._start_step(now_s, found[0])

    def _start_step(self, now_s: float, worker: PrefillWorker) -> None:
        if worker.step is not None and self.reports_between_steps:
            return
        if worker.step is None:
            worker.step = worker.scheduler.plan(int(now_s * 1e9))
            if worker.step is not None:
                step_s = self.costs.step_s(worker.step.num_tokens, worker.step.num_kv_tokens)
                self._at(now_s + step_s, "commit", worker)
        self._publish(worker)

    def _commit(self, now_s: float, worker: PrefillWorker) -> None:
        plan, worker.step = worker.step, None
        assert plan is not None
        worker.num_computed_tokens += plan.num_tokens
        sampled = tuple((SampledToken(1),) * num_draws for num_draws in plan.num_draws)
        outcome = worker.scheduler.commit(plan, StepResult(plan.step_id, sampled, 0.0), int(now_s * 1e9))
        self._publish(worker)
        for output in outcome.all_outputs:
            worker.scheduler.finish_transfer(output.request_id)
            _, arrived_at_s = self._open.pop(output.request_id)
            assert output.facts is not None
            self.num_cached_tokens += output.facts.num_cached_tokens
            self.ttft_s.append(now_s - arrived_at_s)
            self._chosen_by[output.request_id].end(output.request_id)
        self._start_step(now_s, worker)

    def _publish(self, worker: PrefillWorker) -> None:
        """What the worker would send: its load, and what its cache gained and lost."""
        worker.member.load = replace(worker.scheduler.load(), costs=self.costs)
        stored, evicted = worker.scheduler.pool.take_cache_changes()
        if stored or evicted:
            worker.num_batches += 1
            batch = wire.CacheEvents(worker.num_batches, stored, evicted)
            for placement in self.placements:
                placement.take_cache_report(worker.member.ref, batch)

    def _note_skew(self) -> None:
        """Of what all gateways together have chosen, whoever knows of it."""
        waiting = [
            sum(branch.num_remaining for branch in worker.scheduler._queues.waiting)
            + sum(branch.num_remaining for branch in worker.scheduler._queues.running)
            for worker in self.workers
        ]
        if len(self._open) >= 16 * self.num_workers:
            self.peak_skew = max(self.peak_skew, max(waiting) * len(waiting) / sum(waiting))


def hot_hashes(prompt: Sequence[int]) -> list[bytes]:
    return chain(prompt, BLOCK_SIZE, b"")
