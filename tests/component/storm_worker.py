"""A worker of the storm: the real step loop, scheduler, runner and transport, without a process and without sockets.

Messages between it and the gateway take a random time, in order. A turn of the step loop takes the messages of its
beginning and has its effects at its end, a step's time later: what arrives in between waits, and a worker that is
stopped meanwhile writes what it was about to write when it goes on.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any, cast

import numpy as np
from virtual_time import VirtualLoop

from relevo.core.errors import StepFailed, WorkerLost
from relevo.core.events import StepCosts, WireRefusal
from relevo.core.ids import PeerId, RequestId, WorkerId
from relevo.core.kv import Reservation
from relevo.core.plan import ScheduledRow, StepPlan, StepResult
from relevo.core.ports import KVTransport
from relevo.engine.fake_model import VALUE_MASK, Words, fingerprints
from relevo.engine.fake_runner import FakeRunner
from relevo.engine.hello import WorkerIdentity
from relevo.engine.loop import EngineLoop
from relevo.kv.arena import Arena
from relevo.kv.transport_set import TransportSet
from relevo.kv.transports.shm import ShmTransport
from relevo.policy.perf.step_costs import StepCostModel
from relevo.policy.worker.scheduler import Scheduler, SchedulerConfig
from relevo.wire import messages as wire
from relevo.wire.gateway_links import PeerGone

COSTS = StepCosts(base_s=0.002, per_token_s=0.0002, per_kv_token_s=0.0)
VOCAB = 2**31  # a token is 31 bits of a hash of everything before it: no two contexts have the same next token
LATENCY_S = (0.00005, 0.002)


class Foreign(BaseException):
    """A request read a KV cell that is not its own, or was told a token that was not drawn from its own context.

    No Exception, because the step loop takes those for steps that fail and goes on.
    """


@dataclass
class Canaries:
    """What every request of the storm may read and be told. An entry lives as long as a worker may hold something."""

    shared_memory: bool  # a prefill worker reads the receiver's blocks, which may be given away before it hears of it
    ended: set[RequestId] = field(default_factory=set)  # for their clients
    prompts: dict[RequestId, Words] = field(default_factory=dict)
    told: dict[RequestId, dict[tuple[int, int], int]] = field(default_factory=dict)  # (continuation, position): token
    num_cells_read: int = 0

    def add(self, request_id: RequestId, prompt: tuple[int, ...]) -> None:
        self.prompts[request_id] = fingerprints(prompt, 0, 0)
        self.told[request_id] = {}

    def remove(self, request_id: RequestId) -> None:
        del self.prompts[request_id], self.told[request_id]
        self.ended.discard(request_id)

    def check_row(self, row: ScheduledRow, keys: Words, values: Words) -> None:
        """`keys`, `values`: the cells before the row's tokens, which the row reads."""
        prompt = self.prompts.get(row.request_id)
        if prompt is None:
            raise Foreign(f"{row.request_id} computes though everybody has let go of it")
        if self.shared_memory and row.request_id in self.ended:
            return
        expected = prompt[: row.start]
        if row.start > len(prompt):
            outputs = row.samples[0].output_token_ids[: row.start - len(prompt)]
            expected = np.append(prompt, fingerprints(outputs, len(prompt), int(prompt[-1])))
        if not (np.array_equal(keys, expected) and np.array_equal(values ^ VALUE_MASK, expected)):
            raise Foreign(f"{row.request_id} reads foreign KV before position {row.start}")
        self.num_cells_read += row.start

    def drawn(self, request_id: RequestId, sample_index: int, position: int, token: int) -> None:
        """A token from a context that was checked. Drawn again elsewhere it is the same. What was not checked because
        its client is gone (`check_row`) is not judged either; `check_told` sees to it that nobody is told."""
        if self.shared_memory and request_id in self.ended:
            return
        told = self.told.get(request_id)
        if told is not None and told.setdefault((sample_index, position), token) != token:
            raise Foreign(f"{request_id}: two different tokens at position {position}")

    def check_told(self, request_id: RequestId, sample_index: int, position: int, token: int) -> None:
        if self.told[request_id].get((sample_index, position)) != token:
            raise Foreign(f"{request_id} was told a token that is not its own at position {position}")


class CanaryRunner(FakeRunner):
    """Checks every cell before it is read. A step fails now and then."""

    def __init__(self, arena: Arena, canaries: Canaries, rng: Random, failure_probability: float) -> None:
        super().__init__(arena, vocab_size=VOCAB, max_model_len=4096)
        self._canaries = canaries
        self._rng = rng
        self._failure_probability = failure_probability
        self.step_s = 0.0

    def execute(self, plan: StepPlan) -> StepResult:
        self.step_s = COSTS.step_s(plan.num_tokens, plan.num_kv_tokens)
        if self._rng.random() < self._failure_probability:
            raise StepFailed("a step of the storm fails")
        return StepResult(plan.step_id, super().execute(plan).sampled, self.step_s)

    def _compute(self, row: ScheduledRow, *held: Any) -> Any:
        if row.start:
            table = self._slots[np.asarray(row.block_ids[: -(-row.start // self.layout.block_size)])]
            keys, values = table[:, 0].reshape(-1)[: row.start], table[:, 1].reshape(-1)[: row.start]
            self._canaries.check_row(row, keys, values)
        tokens = super()._compute(row, *held)
        for sample, token in zip(row.samples, tokens, strict=True):
            self._canaries.drawn(row.request_id, sample.sample_index, len(sample.output_token_ids), token.token_id)
        return tokens


class LateShmTransport(ShmTransport):
    """Sees the rights to write as they were when the turn began, as a step does that is being computed."""

    def begin_turn(self) -> None:
        self._seen = (self._arena.generations.copy(), self._arena.epochs.copy())

    def may_write(self, reservation: Reservation) -> bool:
        ids, generations = self._open_part(reservation)
        return bool((self._seen[0][ids] == generations).all() and (self._seen[1][ids] == reservation.epoch).all())


class Link:
    """Both ends of one connection: `relevo.wire.client.WorkerConnection` to the gateway, a peer to the worker."""

    def __init__(self, loop: VirtualLoop, rng: Random, hello: wire.Hello, peer: PeerId, to_worker: Any) -> None:
        self.hello = hello
        self.peer = peer
        self._loop, self._rng, self._to_worker = loop, rng, to_worker
        self._inbox: deque[wire.ToGateway] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._batches: dict[str, list[Any]] = {}  # sent in one turn of the event loop, by direction
        self._due_s: dict[str, float] = {}
        self.is_broken = False

    def send(self, message: wire.ToWorker) -> None:
        if self.is_broken:
            raise WorkerLost("the worker died")
        self._post("down", message, self._arrive_down)

    def send_up(self, message: wire.ToGateway) -> None:
        self._post("up", message, self._arrive_up)

    async def receive(self) -> wire.ToGateway:
        while not self._inbox:
            if self.is_broken and "up" not in self._batches:
                raise WorkerLost("the worker died")
            self._waiter = self._loop.create_future()
            await self._waiter
        return self._inbox.popleft()

    def break_off(self) -> None:
        """The worker died. What it had sent still arrives, then the gateway sees the end."""
        self.is_broken = True
        self._post("up", None, self._arrive_up)

    def close(self) -> None:
        self.is_broken = True

    def _post(self, way: str, message: Any, arrive: Callable[[str], None]) -> None:
        if way in self._batches:
            self._batches[way].append(message)
            return
        self._batches[way] = [message]
        due_s = max(self._due_s.get(way, 0.0), self._loop.time() + self._rng.uniform(*LATENCY_S))
        self._due_s[way] = due_s
        self._loop.call_at(due_s, arrive, way)

    def _arrive_down(self, way: str) -> None:
        batch = self._batches.pop(way)
        if not self.is_broken:
            self._to_worker([(self.peer, message) for message in batch])

    def _arrive_up(self, way: str) -> None:
        self._inbox.extend(message for message in self._batches.pop(way) if message is not None)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


@dataclass(eq=False)
class StormServer:
    """In place of relevo.wire.server.WireServer."""

    on_work: Callable[[], None]
    num_refused_connections: dict[WireRefusal, int] = field(default_factory=dict)
    links: dict[PeerId, Link] = field(default_factory=dict)
    inbox: list[tuple[PeerId, wire.ToWorker | PeerGone]] = field(default_factory=list)
    taken: list[tuple[PeerId, wire.ToWorker | PeerGone]] = field(default_factory=list)  # by the turn that has begun
    _num_peers: int = 0

    def accept(self, loop: VirtualLoop, rng: Random, hello: wire.Hello) -> Link:
        peer = PeerId(self._num_peers)
        self._num_peers += 1
        self.links[peer] = Link(loop, rng, hello, peer, self._take)
        return self.links[peer]

    def _take(self, batch: list[tuple[PeerId, wire.ToWorker | PeerGone]]) -> None:
        self.inbox += batch
        self.on_work()

    def begin_turn(self) -> None:
        self.taken, self.inbox = self.inbox, []

    def poll(self, timeout_s: float | None) -> list[tuple[PeerId, wire.ToWorker | PeerGone]]:
        taken, self.taken = self.taken, []
        return taken

    def send(self, peer_id: PeerId, message: wire.ToGateway) -> None:
        self.links[peer_id].send_up(message)

    @property
    def peer_ids(self) -> tuple[PeerId, ...]:
        return tuple(self.links)

    def num_unsent_bytes(self, peer_id: PeerId) -> int:
        return 0

    def wake(self) -> None:
        self.on_work()


class StormWorker:
    """One incarnation. `before_turn` and `after_turn` are the world's: network time, and what must always be true."""

    def __init__(
        self,
        loop: VirtualLoop,
        config: SchedulerConfig,
        role: str,
        arena: Arena,
        make_transport: Callable[[Callable[[], None]], KVTransport],
        runner: CanaryRunner,
        around_turn: Callable[[StormWorker, bool], None],
        rng: Random,
    ) -> None:
        self._loop = loop
        self._around_turn = around_turn
        self._rng = rng
        self._is_in_turn = False
        self.is_dead = False
        self.stopped_until_s = 0.0
        self.runner = runner
        self.arena = arena
        self.server = StormServer(self._want_turn)
        self.scheduler = Scheduler(config)
        self.transport = make_transport(self._want_turn)
        costs = StepCostModel()
        for num_tokens in (1, 16, 64):
            costs.observe(num_tokens, num_tokens, COSTS.step_s(num_tokens, num_tokens))
        self.engine = EngineLoop(
            identity=WorkerIdentity(
                worker_id=WorkerId(config.worker_id), epoch=config.epoch, pid=1, role=role, model_name="fake"
            ),
            scheduler=self.scheduler,
            runner=runner,
            transports=TransportSet([self.transport], arena.identity),
            links=cast(Any, self.server),
            costs=costs,
            clock=loop,
        )

    def connect(self, rng: Random) -> Link:
        return self.server.accept(self._loop, rng, self.engine.hello())

    def stop(self, for_s: float) -> None:
        """SIGSTOP, and SIGCONT after a while."""
        self.stopped_until_s = self._loop.time() + for_s

    def die(self) -> None:
        self.is_dead = True
        for link in self.server.links.values():
            link.break_off()

    def check_sums(self) -> None:
        """free + reusable + held + quarantined == total."""
        pool = self.scheduler.pool
        parts = (pool.num_free, pool.num_reusable, pool.num_held, pool.num_quarantined)
        assert min(parts) >= 0 and sum(parts) == pool.num_blocks, f"blocks of {self.engine.identity}: {parts}"

    def check_held(self) -> None:
        """The same, with held blocks counted one by one."""
        pool = self.scheduler.pool
        num_held = sum(1 for i in range(pool.num_blocks) if pool.num_refs(pool.first_block_id + i))
        assert num_held == pool.num_held

    def leaks(self) -> list[str]:
        """What is left of any request, in words; empty if nothing is."""
        pool, engine, found = self.scheduler.pool, self.engine, []
        if pool.num_free + pool.num_reusable != pool.num_blocks:
            found.append(f"{pool.num_held} blocks held, {pool.num_quarantined} quarantined")
        if self.scheduler.requests or engine.core.remote_prefills:
            found.append(f"requests {list(self.scheduler.requests)[:3]}")
        if self.scheduler.has_work() or len(self.scheduler.reservations):
            found.append("the scheduler has work")
        return found

    def _want_turn(self) -> None:
        if not self._is_in_turn and not self.is_dead:
            self._is_in_turn = True
            self._loop.call_at(self._loop.time(), self._begin_turn)

    def _begin_turn(self) -> None:
        if self._is_held_up(self._begin_turn):
            return
        self.server.begin_turn()
        if isinstance(self.transport, LateShmTransport):
            self.transport.begin_turn()
        step_s = self._rng.uniform(0.0, 2.0) * max(self.runner.step_s, COSTS.base_s) if self._has_work() else 1e-5
        self._loop.call_later(step_s, self._end_turn)

    def _end_turn(self) -> None:
        if self._is_held_up(self._end_turn):
            return
        self._around_turn(self, True)
        wants_more = self.engine.turn(0.0)
        self._around_turn(self, False)
        self._is_in_turn = False
        if wants_more or self.server.inbox:
            self._want_turn()

    def _has_work(self) -> bool:
        return self.scheduler.has_work() or any(not isinstance(message, wire.Ping) for _, message in self.server.taken)

    def _is_held_up(self, then: Callable[[], None]) -> bool:
        """Dead, or stopped: then it goes on later."""
        if not self.is_dead and self._loop.time() < self.stopped_until_s:
            self._loop.call_at(self.stopped_until_s, then)
            return True
        return self.is_dead
