"""A gateway and its workers through an overload and after it, on virtual time: dispatcher, door, membership, placement
and step loops are the real ones; sockets and the model's seconds are not. A step takes the messages of its beginning,
and what it says leaves at its end, as long after as its tokens cost."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any, cast

from awaited_outputs import generate
from storm_worker import Link, StormServer
from virtual_time import VirtualLoop, run_virtually

from relevo.build.event_loop import LoopTimers
from relevo.core.baton import SampledToken
from relevo.core.errors import Overloaded
from relevo.core.events import StepCosts
from relevo.core.ids import PeerId, RequestId, WorkerId
from relevo.core.plan import StepPlan, StepResult
from relevo.core.request import EngineRequest, SamplingParams
from relevo.engine.fake_runner import FakeRunner, fake_layout
from relevo.engine.hello import WorkerIdentity
from relevo.engine.loop import EngineLoop
from relevo.kv.arena import Arena
from relevo.kv.transport_set import TransportSet
from relevo.kv.transports.shm import ShmTransport
from relevo.orchestrator.connections import Connections
from relevo.orchestrator.dispatch import Dispatcher
from relevo.orchestrator.membership import Member, Membership
from relevo.orchestrator.placement import Placement
from relevo.policy.admission.admission import Admission, AdmissionLimits
from relevo.policy.admission.room import RoomLimits
from relevo.policy.handoff.state import HandoffLimits
from relevo.policy.perf.step_costs import StepCostModel
from relevo.policy.routing.worker_choice import WorkerChooser
from relevo.policy.worker.prefix_cache import prompt_hashes
from relevo.policy.worker.scheduler import Scheduler, SchedulerConfig
from relevo.wire import messages as wire

COSTS = StepCosts(base_s=0.03, per_token_s=0.001, per_kv_token_s=2e-6)
BUDGET = 256  # tokens of a step
BLOCK_SIZE = 16
NUM_BLOCKS = 2048  # per worker
MAX_RUNNING = 64


@dataclass
class Asked:
    at_s: float
    num_prompt: int
    num_outputs: int
    ttft_s: float | None = None
    refused: str = ""
    ended_at_s: float | None = None


class TimedRunner(FakeRunner):
    """Computes nothing."""

    step_s = 0.0  # of the step that came last

    def execute(self, plan: StepPlan) -> StepResult:
        self.step_s = COSTS.step_s(plan.num_tokens, plan.num_kv_tokens)
        sampled = tuple((SampledToken(1),) * num_draws for num_draws in plan.num_draws)
        return StepResult(plan.step_id, sampled, self.step_s)


class HoldingServer(StormServer):
    """What is said during a step leaves when the step is over."""

    def __init__(self, on_work: Any) -> None:
        super().__init__(on_work)
        self.said: list[tuple[PeerId, wire.ToGateway]] = []

    def send(self, peer_id: PeerId, message: wire.ToGateway) -> None:
        self.said.append((peer_id, message))

    def let_out(self) -> None:
        said, self.said = self.said, []
        for peer_id, message in said:
            super().send(peer_id, message)


class TimedWorker:
    def __init__(self, loop: VirtualLoop, name: str, role: str, arena: Arena, first_block_id: int) -> None:
        self._loop = loop
        self._is_busy = False
        self.steps: list[tuple[float, float]] = []
        self.server = HoldingServer(self._want_turn)
        self.runner = TimedRunner(arena, max_model_len=4096)
        costs = StepCostModel()
        for num_tokens in (1, 64, 256):
            costs.observe(num_tokens, num_tokens, COSTS.step_s(num_tokens, num_tokens))
        config = SchedulerConfig(
            worker_id=WorkerId(name),
            epoch=1,
            first_block_id=first_block_id,
            num_blocks=NUM_BLOCKS,
            block_size=BLOCK_SIZE,
            max_batched_tokens=BUDGET,
            max_prefill_tokens=BUDGET,
            max_running=MAX_RUNNING,
            max_model_len=4096,
        )
        arena.close_to_writers(range(first_block_id, first_block_id + NUM_BLOCKS))
        self.engine = EngineLoop(
            identity=WorkerIdentity(worker_id=WorkerId(name), epoch=1, pid=1, role=role, model_name="fake"),
            scheduler=Scheduler(config),
            runner=self.runner,
            transports=TransportSet([ShmTransport(arena)], arena.identity),
            links=cast(Any, self.server),
            costs=costs,
            clock=loop,
        )

    def connect(self, rng: Random) -> Link:
        return self.server.accept(self._loop, rng, self.engine.hello())

    def _want_turn(self) -> None:
        if not self._is_busy:
            self._is_busy = True
            self._loop.call_soon(self._begin)

    def _begin(self) -> None:
        self.server.begin_turn()
        self.runner.step_s = 1e-5
        wants_more = self.engine.turn(0.0)
        self.steps.append((self._loop.time(), self._loop.time() + self.runner.step_s))
        self._loop.call_later(self.runner.step_s, self._end, wants_more)

    def _end(self, wants_more: bool) -> None:
        self._is_busy = False
        self.server.let_out()
        if wants_more or self.server.inbox:
            self._want_turn()


@dataclass
class RecoveryWorld:
    roles: dict[str, str]  # by worker
    limits: AdmissionLimits
    seed: int = 0
    asked: list[Asked] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._loop = VirtualLoop()
        self._rng = Random(self.seed)
        arena = Arena.create(fake_layout(BLOCK_SIZE), NUM_BLOCKS * len(self.roles), shared=False)
        self._workers = {
            name: TimedWorker(self._loop, name, role, arena, index * NUM_BLOCKS)
            for index, (name, role) in enumerate(self.roles.items())
        }
        self._membership = Membership([Member(WorkerId(name), role, name) for name, role in self.roles.items()])
        self._connections = Connections(self._membership, self._connect)
        room = RoomLimits(max_running=MAX_RUNNING, max_ahead_tokens=2 * BUDGET, max_ahead_s=0.5, block_size=BLOCK_SIZE)
        self.placement = Placement(self._membership, WorkerChooser(), BLOCK_SIZE, self._rng, room)
        self.admission = Admission(self.limits)
        self._dispatcher = Dispatcher(
            membership=self._membership,
            placement=self.placement,
            admission=self.admission,
            limits=HandoffLimits(),
            block_size=BLOCK_SIZE,
            model_name="fake",
            metrics=cast(Any, self),
            clock=self._loop,
            timers=LoopTimers(self._loop),
            hash_prompt=partial(prompt_hashes, block_size=BLOCK_SIZE),
            kill=lambda worker, reason: None,
        )

    # ---- HandoffMetrics ----------------------------------------------------------------------------------------------

    def admission_rejected(self, model: str, reason: str) -> None:
        pass

    def deadline_missed(self, model: str, when: str) -> None:
        pass

    def handoff_finished(self, *told: Any) -> None:
        pass

    # ---- what clients do ---------------------------------------------------------------------------------------------

    def poisson(self, rate_per_s: float, from_s: float, to_s: float) -> None:
        at_s = from_s + self._rng.expovariate(rate_per_s)
        while at_s < to_s:
            self._ask(at_s)
            at_s += self._rng.expovariate(rate_per_s)

    def evenly(self, rate_per_s: float, from_s: float, to_s: float) -> None:
        """No bursts: each of those would be an overload of its own."""
        for index in range(round((to_s - from_s) * rate_per_s)):
            self._ask(from_s + index / rate_per_s)

    def _ask(self, at_s: float) -> None:
        self.asked.append(Asked(at_s, self._rng.randint(64, 256), self._rng.randint(4, 16)))

    def run(self) -> None:
        run_virtually(self._loop, self._main())

    async def _main(self) -> None:
        members = asyncio.create_task(self._connections.run())
        await self._connections.ready.wait()
        try:
            async with asyncio.TaskGroup() as clients:
                for number, asked in enumerate(self.asked):
                    clients.create_task(self._client(number, asked))
        finally:
            members.cancel()
            await asyncio.gather(members, return_exceptions=True)

    async def _client(self, number: int, asked: Asked) -> None:
        await asyncio.sleep(asked.at_s - self._loop.time())
        started_s = self._loop.time()
        request = EngineRequest(
            request_id=RequestId(f"r{number}"),
            prompt_token_ids=(number,) * asked.num_prompt,
            sampling=SamplingParams(max_tokens=asked.num_outputs, seed=0, temperature=0, ignore_eos=True),
            arrived_at_ns=self._loop.now_ns(),
        )
        try:
            async with contextlib.aclosing(generate(self._dispatcher, request)) as stream:
                async for _ in stream:
                    if asked.ttft_s is None:
                        asked.ttft_s = self._loop.time() - started_s
        except Overloaded as error:
            asked.refused = str(error)
        asked.ended_at_s = self._loop.time()

    async def _connect(self, address: str) -> Link:
        return self._workers[address].connect(self._rng)

    # ---- what came of it ---------------------------------------------------------------------------------------------

    def between(self, from_s: float, to_s: float) -> Iterator[Asked]:
        return (asked for asked in self.asked if from_s <= asked.at_s < to_s)

    def busy_fraction(self, worker: str, from_s: float, to_s: float) -> float:
        """Of the time, that it spent in steps."""
        steps = self._workers[worker].steps
        return sum(max(0.0, min(end_s, to_s) - max(start_s, from_s)) for start_s, end_s in steps) / (to_s - from_s)
