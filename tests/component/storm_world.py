"""A storm of aborts on virtual time: the gateway's dispatcher, membership and placement, the workers' step loops and
schedulers, and a transport, all of them the real ones; only sockets, processes and the model are not.

Clients leave at random moments, workers die, stop, fail steps and come back, the network delays, reorders, duplicates,
loses and haunts. Every KV cell is checked before it is read, every token when it is told; every worker's blocks are
added up after every turn; and again and again all requests end and nothing may be left of them anywhere.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any, cast

from awaited_outputs import generate
from storm_worker import VOCAB, Canaries, CanaryRunner, LateShmTransport, StormWorker
from virtual_time import VirtualLoop, run_virtually

from relevo.build.event_loop import LoopTimers
from relevo.core.errors import RelevoError
from relevo.core.ids import RequestId, WorkerId, WorkerRef
from relevo.core.ports import KVTransport
from relevo.core.request import EngineRequest, SamplingParams
from relevo.engine.fake_runner import fake_layout
from relevo.kv.arena import Arena
from relevo.kv.transports.fake import FakeHub, Faults
from relevo.orchestrator.connections import Connections
from relevo.orchestrator.dispatch import Dispatcher
from relevo.orchestrator.member import Member
from relevo.orchestrator.membership import Membership
from relevo.orchestrator.placement import Placement
from relevo.policy.admission.admission import Admission, AdmissionLimits
from relevo.policy.handoff.state import HandoffLimits, Phase
from relevo.policy.routing.worker_choice import WorkerChooser
from relevo.policy.worker.prefix_cache import prompt_hashes
from relevo.policy.worker.scheduler import SchedulerConfig

BLOCK_SIZE = 4
STOPS_S = (0.01, 0.02, 0.05, 0.05, 0.1, 0.2, 0.5, 20.0)  # the last one is longer than any patience with a worker
TICK_S = 0.02  # of the weather
LIMITS = HandoffLimits(
    queue_s=5.0, prefill_s=1.0, transfer_s=0.3, drain_lease_s=1.0, decode_stall_s=2.0, max_attempts=3
)
MS = 1_000_000
CALM = Faults(delay_ns=(0, MS))
SLOW = Faults(delay_ns=(10 * MS, 200 * MS), duplicate_probability=0.05)
WILD = Faults(
    delay_ns=(0, 5 * MS),
    drop_probability=0.002,
    duplicate_probability=0.1,
    reorder_probability=0.3,
    corrupt_probability=0.002,
    ghost_probability=0.1,
    ghost_delay_ns=(0, 3000 * MS),
)


@dataclass(frozen=True, kw_only=True)
class Storm:
    """One world and its weather."""

    transport: str = "fake"  # or shm
    num_prefill: int = 1
    num_decode: int = 1
    num_blocks: int = 64  # per worker: a handful of requests
    num_clients: int = 10
    faults: tuple[Faults, ...] = (WILD,)  # changes after every calm
    worker_deaths_per_s: float = 0.5
    worker_stops_per_s: float = 2.0
    late_writer_probability: float = 0.3  # whoever leaves in mid-prefill leaves just when the prefill worker stops
    step_failure_probability: float = 0.001
    aborts_between_calms: int = 500


@dataclass
class Tally:
    num_requests: int = 0
    num_aborts: int = 0
    num_whole: int = 0
    num_failed: Counter[str] = field(default_factory=Counter)
    aborted_in: Counter[str] = field(default_factory=Counter)
    handoffs: Counter[str] = field(default_factory=Counter)
    num_deaths: int = 0
    num_stops: int = 0
    num_late_writers: int = 0
    num_turns: int = 0
    num_calms: int = 0
    num_cells_read: int = 0
    num_tokens_told: int = 0
    num_refused_writes: int = 0
    network: Counter[str] = field(default_factory=Counter)
    virtual_s: float = 0.0

    def add(self, other: Tally) -> None:
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)


class StormWorld:
    def __init__(self, storm: Storm, seed: int) -> None:
        self.storm = storm
        self.tally = Tally()
        self._rng = Random(seed)
        self._loop = VirtualLoop()
        self._canaries = Canaries(shared_memory=storm.transport == "shm")
        self._hub = FakeHub(seed, self._rng.choice(storm.faults), checksum=True)
        self._pump_at_ns: int | None = None
        self._pumping: asyncio.TimerHandle | None = None
        self._epochs: Counter[str] = Counter()
        self._roles = {f"prefill-{i}": "prefill" for i in range(storm.num_prefill)}
        self._roles |= {f"decode-{i}": "decode" for i in range(storm.num_decode)}
        self._arenas: dict[str, Arena] = {}
        if storm.transport == "shm":
            shared = Arena.create(fake_layout(BLOCK_SIZE), storm.num_blocks * len(self._roles), shared=False)
            self._arenas = dict.fromkeys(self._roles, shared)
        self._workers: dict[str, StormWorker] = {}
        self._failure: BaseException | None = None
        self._is_calm = False
        self._ended: list[RequestId] = []
        self._prefixes = [[self._rng.randrange(VOCAB) for _ in range(24)] for _ in range(4)]
        self._membership = Membership(
            [Member(WorkerId(name), role, name) for name, role in self._roles.items()],
            heartbeat_timeout_s=3.0,
        )
        self._connections = Connections(self._membership, self._connect)
        self._placement = Placement(self._membership, WorkerChooser(), BLOCK_SIZE, self._rng)
        self._admission = Admission(AdmissionLimits(max_queued_requests=storm.num_clients))
        self._dispatcher = Dispatcher(
            membership=self._membership,
            placement=self._placement,
            admission=self._admission,
            limits=LIMITS,
            model_name="fake",
            metrics=cast(Any, self),
            clock=self._loop,
            timers=LoopTimers(self._loop),
            hash_prompt=prompt_hashes,
            kill=self._fence,
        )

    def run(self, num_aborts: int) -> Tally:
        """Until so many clients have left. Raises on the first thing that is wrong."""
        run_virtually(self._loop, self._main(num_aborts))
        return self.tally

    # ---- HandoffMetrics ----------------------------------------------------------------------------------------------

    def admission_rejected(self, model: str, *told: Any) -> None:
        pass

    def left_line(self, model: str, *told: Any) -> None:
        pass

    def handoff_finished(self, model: str, outcome: str, *told: Any) -> None:
        self.tally.handoffs[outcome] += 1

    # ---- clients -----------------------------------------------------------------------------------------------------

    async def _main(self, num_aborts: int) -> None:
        self._loop.set_exception_handler(self._on_error)
        for name in self._roles:
            self._start(name)
        members = asyncio.create_task(self._connections.run())
        weather = asyncio.create_task(self._weather())
        await self._connections.ready.wait()
        try:
            while self.tally.num_aborts < num_aborts:
                goal = min(num_aborts, self.tally.num_aborts + self.storm.aborts_between_calms)
                async with asyncio.TaskGroup() as clients:
                    for _ in range(self.storm.num_clients):
                        clients.create_task(self._client(goal))
                await self._calm()
                self._raise_failure()
        finally:
            self.tally.virtual_s = self._loop.time()
            self.tally.num_cells_read = self._canaries.num_cells_read
            self.tally.network.update(self._hub.num_faults)
            for task in (members, weather):
                task.cancel()
            await asyncio.gather(members, weather, return_exceptions=True)

    async def _client(self, goal: int) -> None:
        while self.tally.num_aborts < goal:
            self._raise_failure()
            await self._request(self._new_request())
            await asyncio.sleep(self._rng.uniform(0.0, 0.01))

    def _new_request(self) -> EngineRequest:
        """A shared beginning or none, then tokens that nobody else has: the canary."""
        rng = self._rng
        self.tally.num_requests += 1
        prompt = list(rng.choice(self._prefixes)[: rng.choice((0, 0, 8, 24))])
        prompt += [rng.randrange(VOCAB) for _ in range(rng.randint(2, 30))]
        sampling = SamplingParams(
            max_tokens=rng.randint(1, 12), seed=rng.getrandbits(32), n=rng.choice((1, 1, 1, 2)), temperature=1.0
        )
        return EngineRequest(
            request_id=RequestId(f"r{self.tally.num_requests}"), prompt_token_ids=tuple(prompt), sampling=sampling
        )

    async def _request(self, request: EngineRequest) -> None:
        request_id, rng = request.request_id, self._rng
        self._canaries.add(request_id, request.prompt_token_ids)
        patience_s = rng.choice((0.0, 0.01, 0.03, 0.06, 0.1, 0.2, 1.0, 60.0)) * rng.random()
        num_outputs = rng.choice((0, 0, 1, 2, 5, 100))
        counts = [0] * request.sampling.n
        stream = generate(self._dispatcher, request)
        me = asyncio.current_task()
        assert me is not None
        leaving = self._loop.call_later(patience_s, self._leave, request_id, me)
        try:
            async for output in stream:
                for token in output.tokens:
                    position = counts[output.sample_index]
                    self._canaries.check_told(request_id, output.sample_index, position, token.token_id)
                    counts[output.sample_index] += 1
                if num_outputs and sum(counts) >= num_outputs:
                    self._leave(request_id, None)
                    break
            else:
                assert counts == [request.sampling.max_tokens] * request.sampling.n, f"{request_id} got {counts}"
                self.tally.num_whole += 1
        except asyncio.CancelledError:
            me.uncancel()  # it was `_leave`; whoever else cancels does so once more
        except RelevoError as error:
            self.tally.num_failed[error.code] += 1
        leaving.cancel()
        await stream.aclose()
        self.tally.num_tokens_told += sum(counts)
        self._canaries.ended.add(request_id)
        self._ended.append(request_id)
        if len(self._ended) > 256:
            self._forget_gone()

    def _leave(self, request_id: RequestId, client: asyncio.Task[Any] | None) -> None:
        """An abort; it is counted by the phase that it hits."""
        self.tally.num_aborts += 1
        flight = self._dispatcher._requests.get(request_id)
        self.tally.aborted_in[str(flight.handoff.phase) if flight else "not begun"] += 1
        if flight is not None and flight.handoff.phase in (Phase.PREFILLING, Phase.TRANSFERRING):
            assert flight.handoff.prefill is not None
            writer = self._workers.get(flight.handoff.prefill.worker.worker_id)
            if writer is not None and self._rng.random() < self.storm.late_writer_probability:
                self.tally.num_late_writers += 1
                writer.stop(self._rng.choice(STOPS_S))
        if client is not None:
            client.cancel()

    def _forget_gone(self) -> None:
        flights = self._dispatcher._requests
        for request_id in self._ended:
            if request_id not in flights:
                self._canaries.remove(request_id)
        self._ended = [request_id for request_id in self._ended if request_id in flights]

    async def _calm(self) -> None:
        """No client is left: soon nothing is left of any request, and of their transfers only ghosts."""
        self._is_calm = True  # a worker that dies now would take its leaks with it
        deadline_s = self._loop.time() + 60.0
        while found := self._leaks():
            self._raise_failure()
            assert self._loop.time() < deadline_s, "after a minute of calm: " + "; ".join(found)
            await asyncio.sleep(0.5)
        for worker in self._workers.values():
            worker.check_held()
        self._forget_gone()
        assert not self._ended
        self._is_calm = False
        self.tally.num_calms += 1
        self._hub.faults = self._rng.choice(self.storm.faults)

    def _leaks(self) -> list[str]:
        found = [f"{name}: {what}" for name, worker in self._workers.items() for what in worker.leaks()]
        if self._dispatcher.num_in_flight:
            states = [str(flight.handoff.phase) for flight in self._dispatcher._requests.values()]
            found.append(f"flights: {Counter(states)}")
        if not self._placement.is_idle:
            found.append("charges or expectations of the router")
        if self._admission.num_queued_requests or self._admission.num_running or self._admission.num_queued_tokens:
            found.append("admitted requests")
        found += [f"{name} is away" for name in self._roles if name not in self._workers]
        return found

    # ---- workers -----------------------------------------------------------------------------------------------------

    def _start(self, name: str) -> None:
        storm, index = self.storm, list(self._roles).index(name)
        self._epochs[name] += 1
        shares = storm.transport == "shm"
        num_all = storm.num_blocks * len(self._roles)
        if not shares:
            self._arenas[name] = Arena.create(fake_layout(BLOCK_SIZE), num_all, shared=False)
        arena, first = self._arenas[name], index * storm.num_blocks

        def make_transport(wake: Callable[[], None]) -> KVTransport:
            if shares:
                arena.close_to_writers(range(first, first + storm.num_blocks))
                return LateShmTransport(arena, on_wake=wake)
            return self._hub.endpoint(name, arena, wake)

        config = SchedulerConfig(
            worker_id=WorkerId(name),
            epoch=self._epochs[name],
            first_block_id=first,
            num_blocks=storm.num_blocks,
            block_size=BLOCK_SIZE,
            max_batched_tokens=24,
            max_prefill_tokens=16,
            max_running=12,
            max_model_len=storm.num_blocks * BLOCK_SIZE,
        )
        runner = CanaryRunner(arena, self._canaries, self._rng, storm.step_failure_probability)
        self._workers[name] = StormWorker(
            self._loop, config, self._roles[name], arena, make_transport, runner, self._around_turn, self._rng
        )

    async def _connect(self, address: str) -> Any:
        worker = self._workers.get(address)
        if worker is None:
            raise OSError("nobody listens")
        return worker.connect(self._rng)

    def _kill(self, name: str) -> None:
        worker = self._workers.pop(name, None)
        if worker is None:
            return
        self.tally.num_deaths += 1
        self.tally.num_refused_writes += worker.transport.num_refused_writes
        worker.die()
        self._hub.kill(name)
        self._loop.call_later(self._rng.uniform(0.01, 0.5), self._start, name)

    def _fence(self, worker: WorkerRef, reason: str) -> None:
        if self._epochs[worker.worker_id] == worker.epoch:
            self._loop.call_soon(self._kill, worker.worker_id)

    def _around_turn(self, worker: StormWorker, is_before: bool) -> None:
        if is_before:
            self._hub.advance(self._loop.now_ns())
            return
        self.tally.num_turns += 1
        worker.check_sums()
        self._pump()

    def _pump(self) -> None:
        """Let the network deliver what is under way when it is due."""
        due_ns = self._hub.next_due_ns
        if due_ns is not None and (self._pump_at_ns is None or due_ns < self._pump_at_ns):
            if self._pumping is not None:
                self._pumping.cancel()
            self._pump_at_ns = due_ns
            self._pumping = self._loop.call_at(due_ns / 1e9 + 1e-6, self._deliver)

    def _deliver(self) -> None:
        self._pump_at_ns = self._pumping = None
        self._hub.advance(self._loop.now_ns())
        self._pump()

    async def _weather(self) -> None:
        """Deaths and pauses of workers, at random."""
        rng, storm = self._rng, self.storm
        while True:
            await asyncio.sleep(TICK_S)
            if self._is_calm:
                continue
            if rng.random() < TICK_S * storm.worker_deaths_per_s:
                self._kill(rng.choice(list(self._roles)))
            if rng.random() < TICK_S * storm.worker_stops_per_s:
                worker = self._workers.get(rng.choice(list(self._roles)))
                if worker is not None:
                    self.tally.num_stops += 1
                    worker.stop(rng.choice(STOPS_S))

    # ---- failures ----------------------------------------------------------------------------------------------------

    def _on_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """A callback of the event loop raised: the run ends with it."""
        self._failure = self._failure or context.get("exception") or AssertionError(context["message"])

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure
