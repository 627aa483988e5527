"""The gateway's door under more load than the workers can take, on virtual time: real `Admission`, `Placement` and
`Scheduler`s, step times from a formula. Unified workers; a report reaches the gateway when its step ends."""

from __future__ import annotations

import heapq
from collections import Counter
from dataclasses import dataclass, field, replace
from itertools import count
from random import Random
from typing import Any, cast

from routing_world import BLOCK_SIZE, FakeMembership, in_flight_of, member

from relevo.core.baton import SampledToken
from relevo.core.events import StepCosts, TokenOutput, WorkerLoad
from relevo.core.ids import RequestId, WorkerId, WorkerRef
from relevo.core.plan import StepPlan, StepResult
from relevo.core.request import BATCH_PRIORITY, EngineRequest, SamplingParams, ServiceTerms
from relevo.orchestrator.in_flight import InFlightRequest
from relevo.orchestrator.membership import Member
from relevo.orchestrator.placement import Placement
from relevo.policy.admission.admission import Admission, AdmissionLimits, Rejected
from relevo.policy.admission.room import RoomLimits
from relevo.policy.handoff import events
from relevo.policy.routing.worker_choice import WorkerChooser
from relevo.policy.worker.scheduler import Scheduler, SchedulerConfig
from relevo.wire import messages as wire

COSTS = StepCosts(base_s=0.08, per_token_s=0.004, per_kv_token_s=4e-6)
BUDGET = 256  # tokens of a step


@dataclass
class Asked:
    """One request as its client sees it."""

    request: EngineRequest
    at_s: float
    in_flight: InFlightRequest
    ttft_s: float | None = None
    ended_at_s: float | None = None
    num_outputs: int = 0
    refused: str = ""  # the limit
    retry_after_s: float | None = 0.0

    @property
    def is_complete(self) -> bool:
        return self.ended_at_s is not None and not self.refused


@dataclass
class Worker:
    member: Member
    scheduler: Scheduler
    step: StepPlan | None = None


@dataclass
class OverloadWorld:
    limits: AdmissionLimits
    num_workers: int = 2
    num_blocks: int = 400
    max_running: int = 16
    weights: dict[str, float] = field(default_factory=dict)
    seed: int = 0
    asked: list[Asked] = field(default_factory=list)
    most_waiting: int = 0

    def __post_init__(self) -> None:
        self._rng = Random(self.seed)
        self._events: list[tuple[float, int, str, Any]] = []
        self._order = count()
        self._open: dict[RequestId, Asked] = {}
        self._worker_of: dict[RequestId, Worker] = {}
        self.workers = [self._worker(index) for index in range(self.num_workers)]
        room = RoomLimits(
            max_running=self.max_running, max_ahead_tokens=2 * BUDGET, max_ahead_s=0.5, block_size=BLOCK_SIZE
        )
        members = [worker.member for worker in self.workers]
        self.placement = Placement(
            cast(Any, FakeMembership(members)), WorkerChooser(), BLOCK_SIZE, Random(self.seed), room
        )
        for each in members:
            self.placement.take_cache_report(each.ref, wire.CacheSnapshot(0, ()))
        self.admission = Admission(self.limits, self.weights)

    def _worker(self, index: int) -> Worker:
        config = SchedulerConfig(
            worker_id=WorkerId(f"w{index}"),
            epoch=1,
            first_block_id=0,
            num_blocks=self.num_blocks,
            block_size=BLOCK_SIZE,
            max_batched_tokens=BUDGET,
            max_prefill_tokens=BUDGET,
            max_running=self.max_running,
            max_model_len=self.num_blocks * BLOCK_SIZE,
            enable_prefix_caching=False,
        )
        scheduler = Scheduler(config)
        load = replace(scheduler.load(), costs=COSTS)
        return Worker(member(config.worker_id, "unified", load), scheduler)

    # ---- what clients do ---------------------------------------------------------------------------------------------

    def poisson(self, rate_per_s: float, from_s: float, to_s: float, **shape: Any) -> None:
        at_s = from_s + self._rng.expovariate(rate_per_s)
        while at_s < to_s:
            self.ask(at_s, **shape)
            at_s += self._rng.expovariate(rate_per_s)

    def ask(
        self,
        at_s: float,
        *,
        num_prompt: int = 100,
        num_outputs: int = 20,
        priority: int = 0,
        gone_after_s: float | None = None,
        **terms: Any,
    ) -> Asked:
        is_batch = bool(terms.get("is_batch"))
        request = EngineRequest(
            request_id=RequestId(f"r{len(self.asked)}"),
            prompt_token_ids=tuple(self._rng.randrange(1000) for _ in range(num_prompt)),
            sampling=SamplingParams(max_tokens=num_outputs, seed=0, ignore_eos=True),
            priority=priority + BATCH_PRIORITY if is_batch else priority,
            arrived_at_ns=round(at_s * 1e9),
            terms=ServiceTerms(**terms),
        )
        asked = Asked(request, at_s, in_flight_of(request))
        self.asked.append(asked)
        self._at(at_s, "arrive", asked)
        if gone_after_s is not None:
            self._at(at_s + gone_after_s, "leave", asked)
        return asked

    # ---- virtual time ------------------------------------------------------------------------------------------------

    def run(self) -> None:
        while self._events:
            now_s, _, kind, what = heapq.heappop(self._events)
            getattr(self, f"_{kind}")(now_s, what)

    def _at(self, at_s: float, kind: str, what: Any) -> None:
        heapq.heappush(self._events, (at_s, next(self._order), kind, what))

    def _arrive(self, now_s: float, asked: Asked) -> None:
        request, placement, now_ns = asked.request, self.placement, round(now_s * 1e9)
        num_cached_tokens, outlook = placement.num_cached_tokens(asked.in_flight), placement.outlook(asked.in_flight)
        verdict = self.admission.enter(request, num_cached_tokens, outlook, now_ns)
        if isinstance(verdict, Rejected):
            self._refuse(now_s, asked, verdict.end.limit, verdict.end.retry_after_s)
            return
        self._open[request.request_id] = asked
        if verdict.displaced is not None:
            gone = verdict.displaced
            self._refuse(now_s, self._open[gone.request_id], gone.end.limit, gone.end.retry_after_s)
        self._arm(request.request_id)
        self._pump(now_s)

    def _arm(self, request_id: RequestId) -> None:
        due_at_ns = self.admission.due_at_ns(request_id)
        if due_at_ns is not None:
            self._at(due_at_ns / 1e9, "look", request_id)

    def _look(self, now_s: float, request_id: RequestId) -> None:
        asked = self._open.get(request_id)
        if asked is None:
            return
        outlook = self.placement.outlook(asked.in_flight)
        overdue = self.admission.overdue(request_id, outlook, round(now_s * 1e9))
        if overdue is None:
            self._arm(request_id)
        else:
            self._refuse(now_s, asked, overdue.end.limit, overdue.end.retry_after_s)
            self._pump(now_s)

    def _leave(self, now_s: float, asked: Asked) -> None:
        if asked.request.request_id in self._open:
            self._refuse(now_s, asked, "client left", 0.0)
            self._pump(now_s)

    def _refuse(self, now_s: float, asked: Asked, limit: str, retry_after_s: float | None) -> None:
        asked.refused, asked.ended_at_s, asked.retry_after_s = limit, now_s, retry_after_s
        self._end(now_s, asked)

    def _end(self, now_s: float, asked: Asked) -> None:
        request_id = asked.request.request_id
        worker = self._worker_of.pop(request_id, None)
        self._open.pop(request_id, None)
        self.placement.end(request_id)
        self.admission.done(request_id, round(now_s * 1e9), asked.num_outputs)
        if worker is not None:
            worker.scheduler.abort(request_id, writer_active=False)
            self._start_step(now_s, worker)

    def _pump(self, now_s: float) -> None:
        self.most_waiting = max(self.most_waiting, self.admission.num_queued_requests)

        def has_room(ticket: Any) -> bool:
            return self.placement.has_room(self._open[ticket.request_id].in_flight)

        while (ticket := self.admission.next(round(now_s * 1e9), has_room)) is not None:
            asked = self._open[ticket.request_id]
            request, choice = asked.request, self.placement.choose_decode(asked.in_flight, ())
            assert choice is not None
            worker = next(w for w in self.workers if w.member.ref == choice.worker)
            assert worker.scheduler.submit(request, (), round(now_s * 1e9)) is None
            self._worker_of[request.request_id] = worker
            self._start_step(now_s, worker)

    def _start_step(self, now_s: float, worker: Worker) -> None:
        if worker.step is None:
            worker.step = worker.scheduler.plan(round(now_s * 1e9))
            if worker.step is not None:
                step_s = COSTS.step_s(worker.step.num_tokens, worker.step.num_kv_tokens)
                self._at(now_s + step_s, "commit", worker)
            worker.member.load = replace(worker.scheduler.load(), costs=COSTS)

    def _commit(self, now_s: float, worker: Worker) -> None:
        plan, worker.step = worker.step, None
        assert plan is not None
        sampled = tuple((SampledToken(1),) * num_draws for num_draws in plan.num_draws)
        outcome = worker.scheduler.commit(plan, StepResult(plan.step_id, sampled, 0.0), round(now_s * 1e9))
        worker.member.load = replace(worker.scheduler.load(), costs=COSTS)
        for output in outcome.all_outputs:
            self._take(now_s, worker.member.ref, output)
        self._start_step(now_s, worker)
        self._pump(now_s)

    def _take(self, now_s: float, worker: WorkerRef, output: TokenOutput) -> None:
        asked = self._open[output.request_id]
        asked.num_outputs += len(output.tokens)
        if asked.ttft_s is None:
            asked.ttft_s = now_s - asked.at_s
            self.admission.started(output.request_id, round(now_s * 1e9))
        self.placement.observe(asked.in_flight, events.Tokens(worker, output))
        if output.finish_reason is not None:
            asked.ended_at_s = now_s
            self._worker_of.pop(output.request_id)
            self._end(now_s, asked)

    # ---- what came of it ---------------------------------------------------------------------------------------------

    def good(self, slo_ttft_s: float, from_s: float, to_s: float) -> float:
        """Requests per second that completed within the window and had their first token in time."""
        met = [
            a
            for a in self.asked
            if a.is_complete
            and a.ttft_s is not None
            and a.ttft_s <= slo_ttft_s
            and from_s <= cast(float, a.ended_at_s) < to_s
        ]
        return len(met) / (to_s - from_s)

    def refusals(self) -> Counter[str]:
        return Counter(a.refused for a in self.asked if a.refused)

    def is_clean(self) -> bool:
        blocks_free = all(w.scheduler.load().num_held_blocks == 0 for w in self.workers)
        return self.admission.is_idle and self.placement.is_idle and not self._open and blocks_free


def loads(world: OverloadWorld) -> list[WorkerLoad]:
    return [worker.member.load for worker in world.workers]
