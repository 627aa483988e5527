"""Several gateways over several workers in one process: real dispatchers, memberships, placements and step loops over
the fake engine and one shared arena; only sockets are replaced. Nothing waits for time: workers take a turn whenever
they have a message or a step."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Collection
from dataclasses import dataclass, field
from random import Random

from awaited_outputs import generate

from relevo.build.clock import MonotonicClock
from relevo.build.event_loop import LoopTimers
from relevo.core.errors import WorkerLost
from relevo.core.events import UNKNOWN_COSTS, StepCosts
from relevo.core.ids import RequestId, WorkerId
from relevo.core.plan import StepPlan
from relevo.core.ports import Clock, KVTransport
from relevo.core.request import EngineRequest, SamplingParams
from relevo.engine.fake_runner import FAKE_MODEL, FakeRunner, fake_layout
from relevo.engine.grammar_masks import GrammarMasks
from relevo.engine.grammars import Grammars, no_grammars
from relevo.engine.hello import WorkerIdentity
from relevo.engine.loop import EngineLoop
from relevo.kv.arena import Arena
from relevo.kv.transport_set import TransportSet
from relevo.kv.transports.fake import FakeHub
from relevo.kv.transports.shm import ShmTransport
from relevo.orchestrator.connections import Connections
from relevo.orchestrator.dispatch import Dispatcher
from relevo.orchestrator.gossip import Gossip, GossipSource
from relevo.orchestrator.gossip_sockets import GossipSockets, Peer
from relevo.orchestrator.insight import Insight
from relevo.orchestrator.member import Member
from relevo.orchestrator.membership import Membership
from relevo.orchestrator.placement import Placement
from relevo.policy.admission.admission import Admission, AdmissionLimits
from relevo.policy.admission.room import RoomLimits
from relevo.policy.handoff.state import HandoffLimits
from relevo.policy.perf.step_costs import StepCostModel
from relevo.policy.routing.worker_choice import WorkerChooser
from relevo.policy.worker.prefix_cache import prompt_hashes
from relevo.policy.worker.scheduler import Scheduler, SchedulerConfig
from relevo.wire import messages as wire
from relevo.wire.in_process_links import InProcessLinks

BLOCK_SIZE = 4
STEP_S = StepCosts(base_s=0.01, per_token_s=0.001, per_kv_token_s=1e-6)


class InProcessConnection:
    """A gateway's end of a connection to a worker, without latency."""

    def __init__(self, links: InProcessLinks) -> None:
        self.incoming: asyncio.Queue[wire.ToGateway | None] = asyncio.Queue()
        self._links = links
        self._peer = links.connect(self.incoming.put_nowait)
        hello = self.incoming.get_nowait()
        assert isinstance(hello, wire.Hello)
        self.hello = hello

    def send(self, message: wire.ToWorker) -> None:
        if self._peer not in self._links.peer_ids:
            raise WorkerLost("closed")
        self._links.deliver(self._peer, message)

    async def receive(self) -> wire.ToGateway:
        message = await self.incoming.get()
        if message is None:
            raise WorkerLost("closed")
        return message

    def close(self) -> None:
        if self._peer in self._links.peer_ids:
            self._links.disconnect(self._peer)
            self.incoming.put_nowait(None)


class HeldScheduler(Scheduler):
    is_held = False  # True: messages are handled, nothing is computed

    def plan(self, now_ns: int, costs: StepCosts = UNKNOWN_COSTS) -> StepPlan | None:
        return None if self.is_held else super().plan(now_ns, costs)


@dataclass
class Worker:
    loop: EngineLoop
    links: InProcessLinks
    scheduler: HeldScheduler
    has_message: asyncio.Event = field(default_factory=asyncio.Event)
    hears: asyncio.Event = field(default_factory=asyncio.Event)  # cleared: as if within a long step
    event_loop: asyncio.AbstractEventLoop | None = None  # that runs it

    def __post_init__(self) -> None:
        self.hears.set()
        self.links.on_connect, self.links.on_ready = self.loop.hello, self._ready

    def _ready(self) -> None:
        """From the thread that compiles grammars, too."""
        if self.event_loop is None or threading.current_thread() is threading.main_thread():
            self.has_message.set()
        else:
            self.event_loop.call_soon_threadsafe(self.has_message.set)

    async def run(self) -> None:
        self.event_loop = asyncio.get_running_loop()
        while True:
            await self.has_message.wait()
            await self.hears.wait()
            self.has_message.clear()
            while self.loop.turn(0.0) and not self.scheduler.is_held and self.hears.is_set():  # noqa: ASYNC110
                await asyncio.sleep(0)

    def hold(self) -> None:
        self.scheduler.is_held = True

    def go_on(self) -> None:
        self.scheduler.is_held = False
        self.links.wake()

    @property
    def is_clean(self) -> bool:
        load = self.loop.scheduler.load()
        return not (load.num_held_blocks or load.num_quarantined_blocks or self.loop.core.num_requests)


@dataclass
class Gateway:
    name: str
    membership: Membership
    placement: Placement
    dispatcher: Dispatcher
    insight: Insight
    connections: Connections
    links: list[InProcessConnection]
    is_dead: list[bool]
    gossip: GossipSockets | None = None
    task: asyncio.Task[None] = field(init=False)

    async def die(self) -> None:
        """As by kill -9: its connections end, nothing more is said on them."""
        self.is_dead.append(True)
        for link in self.links:
            link.close()
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self.connections.run())
            if self.gossip is not None:
                group.create_task(self.gossip.run())

    async def tokens(self, request: EngineRequest) -> tuple[list[int], int]:
        """Output tokens, and how many prompt tokens were cached."""
        tokens, num_cached = [], 0
        async for output in generate(self.dispatcher, request):
            tokens += [token.token_id for token in output.tokens]
            num_cached += output.facts.num_cached_tokens if output.facts is not None else 0
        return tokens, num_cached


class Silent:
    """No metrics."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *args, **kwargs: None


@dataclass
class InProcessStack:
    workers: dict[str, Worker]
    gossip_folder: str = ""  # empty: they do not talk
    gateways: list[Gateway] = field(default_factory=list)
    clock: Clock = field(default_factory=MonotonicClock)
    room: RoomLimits | None = None  # None: requests are sent at once
    limits: AdmissionLimits = field(default_factory=AdmissionLimits)

    async def add_gateway(self) -> Gateway:
        """Connected to every worker, and let in by all."""

        links: list[InProcessConnection] = []
        is_dead: list[bool] = []

        async def connect(address: str) -> InProcessConnection:
            if is_dead:
                raise ConnectionRefusedError
            worker = self.workers[address]
            links.append(InProcessConnection(worker.links))
            return links[-1]

        members = [Member(WorkerId(w), worker.loop.identity.role, w) for w, worker in self.workers.items()]
        membership = Membership(members)
        connections = Connections(membership, connect)
        placement = Placement(membership, WorkerChooser(), BLOCK_SIZE, Random(len(self.gateways)), self.room)
        insight = Insight()
        dispatcher = Dispatcher(
            membership=membership,
            placement=placement,
            admission=Admission(self.limits),
            limits=HandoffLimits(),
            model_name="fake",
            metrics=Silent(),
            clock=self.clock,
            timers=LoopTimers(self.clock),
            hash_prompt=prompt_hashes,
            kill=lambda worker, reason: None,
            decide=insight.decisions,
            insight=insight,
        )
        name = f"gateway-{len(self.gateways)}"
        gateway = Gateway(name, membership, placement, dispatcher, insight, connections, links, is_dead)
        if self.gossip_folder:
            gateway.gossip = self._gossip(gateway)
            placement.tell(gateway.gossip.gossip.news)
        gateway.task = asyncio.create_task(gateway.run())
        await connections.ready.wait()
        self.gateways.append(gateway)
        return gateway

    def _gossip(self, gateway: Gateway) -> GossipSockets:
        """Of at most three gateways."""
        paths = {f"gateway-{i}": f"{self.gossip_folder}/{i}" for i in range(3)}
        placement = gateway.placement
        source = GossipSource(placement.change_log, placement.peer_state, gateway.dispatcher.on_heard)
        return GossipSockets(
            gossip=Gossip(sources={"fake": source}, clock=self.clock, timers=LoopTimers(self.clock)),
            path=paths.pop(gateway.name),
            peers=[Peer(name, path) for name, path in paths.items()],
            answers={"name": lambda: gateway.name.encode()},
        )


def make_worker(
    worker_id: str,
    role: str,
    arena: Arena,
    first_block_id: int,
    num_blocks: int,
    transports: TransportSet | None = None,
    grammars: Grammars | None = None,
) -> Worker:
    """`transports`: None for shared memory alone. `grammars`: None if no request has one."""
    links, costs = InProcessLinks(), StepCostModel()
    grammars = grammars or no_grammars()
    for num_tokens, num_kv_tokens in ((1, 1), (1, 64), (16, 16)):
        costs.observe(num_tokens, num_kv_tokens, STEP_S.step_s(num_tokens, num_kv_tokens))
    scheduler = HeldScheduler(
        SchedulerConfig(
            worker_id=WorkerId(worker_id),
            epoch=1,
            first_block_id=first_block_id,
            num_blocks=num_blocks,
            num_arena_blocks=arena.num_blocks,
            block_size=BLOCK_SIZE,
            max_batched_tokens=16,
            max_prefill_tokens=16,
            max_running=8,
            max_model_len=num_blocks * BLOCK_SIZE,
            vocab_size=FAKE_MODEL.vocab_size,
        )
    )
    arena.close_to_writers(range(first_block_id, first_block_id + num_blocks))
    loop = EngineLoop(
        identity=WorkerIdentity(worker_id=WorkerId(worker_id), epoch=1, pid=1, role=role, model_name="fake"),
        scheduler=scheduler,
        runner=FakeRunner(
            arena,
            max_model_len=num_blocks * BLOCK_SIZE,
            grammar_masks=GrammarMasks(grammars, FAKE_MODEL.vocab_size),
        ),
        transports=transports or TransportSet([ShmTransport(arena)], arena.identity),
        links=links,
        costs=costs,
        clock=MonotonicClock(),
        grammars=grammars,
    )
    return Worker(loop, links, scheduler)


@contextlib.asynccontextmanager
async def in_process_stack(
    roles: dict[str, str],
    num_gateways: int = 2,
    num_blocks: int = 64,
    gossip_folder: str = "",
    far: Collection[str] = (),
    grammars: Grammars | None = None,
) -> AsyncIterator[InProcessStack]:
    """`roles` by worker id. With a `gossip_folder` (a short path) the gateways talk over sockets in it. `far`: workers
    in boxes of their own, which a simulated network joins to all."""
    hub, shared = FakeHub(), Arena.create(fake_layout(BLOCK_SIZE), num_blocks * len(roles), shared=False)

    def worker_of(worker_id: str, first_block_id: int) -> Worker:
        is_far = worker_id in far
        arena = Arena.create(shared.layout, shared.num_blocks, shared=False) if is_far else shared
        kinds: list[KVTransport] = [ShmTransport(arena), *([hub.endpoint(worker_id, arena)] if far else [])]
        transports = TransportSet(kinds, arena.identity, worker_id if is_far else "here")
        return make_worker(worker_id, roles[worker_id], arena, first_block_id, num_blocks, transports, grammars)

    async def pump() -> None:
        while True:
            hub.advance(hub.now_ns + 1)
            for worker in workers.values():
                worker.links.wake()
            await asyncio.sleep(0)

    workers = {worker_id: worker_of(worker_id, index * num_blocks) for index, worker_id in enumerate(roles)}
    running = [asyncio.create_task(worker.run()) for worker in workers.values()]
    if far:
        running.append(asyncio.create_task(pump()))
    stack = InProcessStack(workers, gossip_folder)
    try:
        for _ in range(num_gateways):
            await stack.add_gateway()
        yield stack
    finally:
        tasks = [*running, *(gateway.task for gateway in stack.gateways)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def until(condition: Callable[[], bool]) -> None:
    """Turns of the event loop until it holds; a test that hangs here is red by its own time limit."""
    while not condition():  # noqa: ASYNC110  # any task may bring it about
        await asyncio.sleep(0)


def request_for(number: int, prompt: list[int], max_tokens: int = 8, session: bytes = b"") -> EngineRequest:
    return EngineRequest(
        request_id=RequestId(f"r{number}"),
        prompt_token_ids=tuple(prompt),
        sampling=SamplingParams(max_tokens=max_tokens, seed=0, temperature=0, ignore_eos=True),
        session=session,
    )
