"""One gateway's orchestrator over engines that are not ours: real links over HTTP to the servers of `fake_engines`."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from random import Random

from awaited_outputs import generate
from fake_engines import VOCAB_SIZE, Fabric, FakeEngine, FakeSGLang, FakeVLLM
from in_process_stack import Silent

from relevo.build.clock import MonotonicClock
from relevo.build.event_loop import LoopTimers
from relevo.core.baton import PrefillFacts
from relevo.core.ids import RequestId, WorkerId, WorkerRef
from relevo.core.request import EngineRequest, SamplingParams
from relevo.engines.link import EngineLink
from relevo.engines.moments import Moments
from relevo.engines.opening import Opener
from relevo.engines.pool import EnginePool
from relevo.engines.spec import EngineSpec
from relevo.orchestrator.connections import Connections
from relevo.orchestrator.dispatch import Dispatcher
from relevo.orchestrator.insight import Insight
from relevo.orchestrator.membership import Member, Membership
from relevo.orchestrator.placement import Placement
from relevo.policy.admission.admission import Admission, AdmissionLimits
from relevo.policy.handoff.dialects import FIRST_OF_ENGINE
from relevo.policy.handoff.state import HandoffLimits
from relevo.policy.routing.worker_choice import WorkerChooser
from relevo.policy.worker.prefix_cache import prompt_hashes

BLOCK_SIZE = 4
WAIT_S = 10.0  # a deadline, not a measurement


@dataclass
class JumpingClock:
    """Real time, and what a stopped process misses of it."""

    jump_ns: int = 0
    _clock: MonotonicClock = field(default_factory=MonotonicClock)

    def now_ns(self) -> int:
        return self._clock.now_ns() + self.jump_ns


class Counts:
    def __init__(self) -> None:
        self.handoffs: Counter[str] = Counter()
        self.pairs = (0, 0)

    def engine_handoff(self, model: str, outcome: str) -> None:
        self.handoffs[outcome] += 1

    def engine_pairs(self, model: str, num_paired: int, num_unpaired: int) -> None:
        self.pairs = (num_paired, num_unpaired)


@dataclass
class Said:
    tokens: list[int] = field(default_factory=list)
    facts: list[PrefillFacts] = field(default_factory=list)


@dataclass
class EngineStack:
    fabric: Fabric
    engines: dict[str, FakeEngine]
    clock: JumpingClock
    counts: Counts
    pool: EnginePool
    openers: dict[str, Opener]
    membership: Membership
    dispatcher: Dispatcher
    placement: Placement
    connections: Connections
    killed: list[str] = field(default_factory=list)

    async def said(self, request: EngineRequest) -> Said:
        told = Said()
        async for output in generate(self.dispatcher, request):
            told.tokens += [token.token_id for token in output.tokens]
            told.facts += [output.facts] if output.facts is not None else []
        return told

    async def tokens(self, request: EngineRequest) -> list[int]:
        return (await self.said(request)).tokens

    def is_ready(self, worker_id: str) -> bool:
        return any(each.worker_id == worker_id and each.is_ready for each in self.membership.members)

    def why_not_ready(self, worker_id: str) -> str:
        return next(each.why_not_ready for each in self.membership.members if each.worker_id == worker_id)

    def link(self, worker_id: str) -> EngineLink:
        link = self.openers[f"engine:{worker_id}"]._link
        assert link is not None
        return link

    async def is_idle(self) -> bool:
        await until(lambda: not self.dispatcher.num_in_flight)
        return self.placement.is_idle


def request_for(
    number: int, prompt: Sequence[int], max_tokens: int = 8, n: int = 1, **sampling: object
) -> EngineRequest:
    values = {"seed": 0, "temperature": 0.0, "ignore_eos": True, **sampling}
    return EngineRequest(
        request_id=RequestId(f"r{number}"),
        prompt_token_ids=tuple(prompt),
        sampling=SamplingParams(max_tokens=max_tokens, n=n, **values),  # type: ignore[arg-type]
    )


def prompt_of(number: int, num_tokens: int = 13) -> list[int]:
    rng = Random(number)
    return [rng.randrange(VOCAB_SIZE) for _ in range(num_tokens)]


async def until(condition: object, wait_s: float = WAIT_S) -> None:
    async with asyncio.timeout(wait_s):
        while not condition():  # type: ignore[operator]  # noqa: ASYNC110
            await asyncio.sleep(0.002)


@contextlib.asynccontextmanager
async def engine_stack(
    roles: dict[str, str],
    *,
    engine: str = "vllm",
    wait_for: Sequence[str] | None = None,
    changes: dict[str, dict[str, object]] | None = None,
    step_s: float = 5.0,
    limits: HandoffLimits | None = None,
) -> AsyncIterator[EngineStack]:
    """`changes`: fields of fake engines by worker id. `wait_for`: who must be ready; None: all."""
    fabric, kind = Fabric(), FakeVLLM if engine == "vllm" else FakeSGLang
    engines: dict[str, FakeEngine] = {}
    for worker_id, role in roles.items():
        engines[worker_id] = kind(fabric, role, **(changes or {}).get(worker_id, {}))  # type: ignore[arg-type]
        await engines[worker_id].start()
    clock, counts = JumpingClock(), Counts()
    pool = EnginePool(
        model="tiny", clock=clock, moments=Moments(clock), metrics=counts, rng=Random(1), prefill_s=20.0, step_s=step_s
    )
    specs = {
        worker_id: EngineSpec(
            worker_id=worker_id,
            url=each.url,
            role=each.role,
            engine=engine,
            dialect=FIRST_OF_ENGINE[engine].name,
            served_name="tiny",
            block_size=BLOCK_SIZE,
            vocab_size=VOCAB_SIZE,
        )
        for worker_id, each in engines.items()
    }
    openers = {spec.address: Opener(spec, pool, retry_s=0.02) for spec in specs.values()}
    membership = Membership(
        [Member(WorkerId(spec.worker_id), spec.role, spec.address, writes_to_others=False) for spec in specs.values()]
    )
    placement = Placement(membership, WorkerChooser(), BLOCK_SIZE, Random(2))
    connections = Connections(membership, lambda address: openers[address].open())
    insight = Insight()
    killed: list[str] = []

    def kill(worker: WorkerRef, reason: str) -> None:
        killed.append(reason)
        openers[f"engine:{worker.worker_id}"].end(reason)

    dispatcher = Dispatcher(
        membership=membership,
        placement=placement,
        admission=Admission(AdmissionLimits()),
        limits=limits or HandoffLimits(),
        model_name="tiny",
        metrics=Silent(),
        clock=clock,
        timers=LoopTimers(clock),
        hash_prompt=prompt_hashes,
        kill=kill,
        decide=insight.decisions,
        insight=insight,
    )
    stack = EngineStack(
        fabric, engines, clock, counts, pool, openers, membership, dispatcher, placement, connections, killed
    )
    running = asyncio.create_task(connections.run())
    try:
        await until(lambda: all(stack.is_ready(each) for each in (roles if wait_for is None else wait_for)))
        for each in engines.values():
            each.bodies.clear()
        yield stack
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        for opener in openers.values():
            opener.end("the test is over")
        await asyncio.sleep(0)
        for each in engines.values():
            await each.kill()
        await pool.close()
