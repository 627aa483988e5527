"""The live server in lock step with virtual time: what a parity test holds a simulated world against.

Real, as in a live server: the dispatcher, `orchestrator.connections` and gossip with their
tasks, `WorkerConnection` and `WireServer` over unix sockets, so every message is encoded, sent, received and decoded;
step loops and schedulers over `FakeRunner`, whose KV lies in one shared arena behind `ShmTransport`; prompts of tokens,
hashed as tokens.

Scripted: the clock (the simulation's kernel, and asyncio's timers on it), the seconds of a step (the same model), the
time that a message is under way (the same links). A message is written to its socket in the instant in which it
arrives; then the event loop turns until it is handled and nothing more is to be done in this instant.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from relevo.core.events import TokenOutput
from relevo.core.ids import WorkerId
from relevo.core.outcome import RequestEnd
from relevo.core.plan import StepPlan, StepResult
from relevo.core.request import EngineRequest
from relevo.core.timeline import Timeline
from relevo.engine.fake_runner import FakeRunner
from relevo.kv.arena import Arena
from relevo.kv.transport_set import TransportSet
from relevo.kv.transports.shm import ShmTransport
from relevo.orchestrator.connections import Connections
from relevo.orchestrator.gossip import Gossip
from relevo.orchestrator.gossip_sockets import GossipSockets, Peer
from relevo.orchestrator.ports import OutputSink, StartedRequest
from relevo.policy.perf.step_time import StepTimeModel, step_shape
from relevo.policy.worker.content import TOKENS
from relevo.sim.config import RegionSpec, WorkerSpec
from relevo.sim.gateway import SimGateway, SimLink, Ways
from relevo.sim.kernel import Kernel
from relevo.sim.network import Channel, Link
from relevo.sim.worker import SimWorker
from relevo.sim.world import World
from relevo.wire import messages as wire
from relevo.wire.client import WorkerConnection
from relevo.wire.gateway_links import PeerGone
from relevo.wire.server import WireServer
from relevo.workload.requests import WorkloadRequest

VOCAB = 2**31


class _NoWait(selectors.DefaultSelector):
    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        return super().select(0)


class LockstepLoop(asyncio.SelectorEventLoop):
    """Its time is the kernel's; it runs only in `settle`."""

    def __init__(self, kernel: Kernel) -> None:
        super().__init__(_NoWait())
        self._kernel = kernel
        self.servers: dict[WireServer, Callable[[Any, Any], None]] = {}  # with what takes their messages

    def time(self) -> float:
        return self._kernel.now_ns() / 1e9

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> asyncio.TimerHandle:
        self._kernel.call_at(round(when * 1e9), self.settle)
        return super().call_at(when, callback, *args, context=context)

    def settle(self, is_done: Callable[[], bool] = lambda: True) -> None:
        """Turn until it is done and nothing is left to be done now."""
        self.run_until_complete(self._turn(is_done))

    async def _turn(self, is_done: Callable[[], bool]) -> None:
        num_quiet = 0
        while num_quiet < 2:
            for server, take in list(self.servers.items()):
                for peer, message in server.poll(0.0):
                    take(peer, message)
            await asyncio.sleep(0)
            num_quiet = num_quiet + 1 if is_done() and not self._ready else 0  # type: ignore[attr-defined]


class LiveLink(SimLink):
    """One connection over a socket. It is both what membership sends to and what `Connections` receives from."""

    def __init__(self, gateway: LiveGateway, worker: LiveWorker, ways: Ways) -> None:
        self.gateway, self.worker = gateway, worker
        self.num_handled = 0
        self.connection: WorkerConnection | None = None
        self.server_peer: Any = None
        self.decoded: list[wire.ToWorker] = []
        super().__init__(gateway.kernel, worker, ways, self._up, self._ended)

    async def receive(self) -> wire.ToGateway:
        assert self.connection is not None
        self.num_handled += 1  # the one before
        return await self.connection.receive()

    def _up(self, _link: SimLink, message: wire.ToGateway) -> None:
        loop, server = self.gateway.loop, self.worker.server
        if isinstance(message, wire.Hello):
            self.worker.hello_to_come = message
            self.gateway.arrived(self)
            loop.settle(lambda: self.num_handled == 1)
            return
        num_before = self.num_handled
        server.send(self.server_peer, message)
        loop.settle(lambda: self.num_handled > num_before)

    def _ended(self, _link: SimLink) -> None:
        self.gateway.links.pop(WorkerId(self.worker.config.worker_id), None)
        if self.connection is not None:
            self.worker.server._drop(self.worker.server._peers[self.server_peer], "its process ended")
        self.gateway.loop.settle()

    def _arrive_down(self, message: wire.ToWorker | None) -> None:
        if message is None:
            super()._arrive_down(None)
            return
        assert self.connection is not None
        connection = self.connection

        async def send() -> None:
            connection.send(message)

        self.gateway.loop.run_until_complete(send())
        self.gateway.loop.settle(lambda: bool(self.decoded))
        super()._arrive_down(self.decoded.pop(0))

    def close(self) -> None:
        super().close()
        if self.connection is not None:
            self.connection.close()


class CountedGossip(Gossip):
    num_heard = 0

    def hear(self, gateway_id: str, message: Any) -> None:
        type(self).num_heard += 1
        super().hear(gateway_id, message)


class LiveRequest:
    """A client's handle, as the HTTP side has it; what it does happens on the event loop."""

    def __init__(self, gateway: LiveGateway, request: EngineRequest, sink: OutputSink) -> None:
        self.gateway, self.sink = gateway, sink
        self.tokens: list[int] = []
        self._started: StartedRequest
        self._do(lambda: setattr(self, "_started", gateway.dispatcher.start(request, self)))

    @property
    def timeline(self) -> Timeline:
        return self._started.timeline

    @property
    def route(self) -> str:
        return self._started.route

    def end(self, end: RequestEnd) -> None:
        self._do(lambda: self._started.end(end))

    def on_output(self, output: TokenOutput) -> None:
        self.tokens += [token.token_id for token in output.tokens]
        self.sink.on_output(output)

    def on_end(self, end: RequestEnd) -> None:
        self.sink.on_end(end)

    def _do(self, call: Callable[[], None]) -> None:
        async def on_the_loop() -> None:
            call()

        self.gateway.loop.run_until_complete(on_the_loop())
        self.gateway.loop.settle()


class LiveGateway(SimGateway):
    def __init__(self, world: LiveWorld, gateway_id: str, region: RegionSpec) -> None:
        self.world, self.loop = world, world.loop
        self.to_come: dict[str, list[asyncio.Future[LiveLink]]] = {}
        super().__init__(
            world.kernel,
            gateway_id,
            region,
            world.config.serving,
            world._kill_incarnation,
            world.quiet,
            decisions=world._tally,
        )
        self.gossip = CountedGossip(sources=self.gossip.sources, clock=self.kernel, timers=self.kernel)
        names = [f"gateway-{index}" for index in range(region.num_gateways)]
        self.sockets = GossipSockets(
            gossip=self.gossip,
            path=f"{world.folder}/{gateway_id}",
            peers=[Peer(name, f"{world.folder}/{name}") for name in names if name != gateway_id],
            answers={},
        )
        self.gossip.tell = self._tell
        self.connections = Connections(self.membership, self._connect)
        self.tasks = [self.loop.create_task(self.connections.run()), self.loop.create_task(self.sockets.run())]

    def start(self, request: EngineRequest, sink: OutputSink) -> Any:
        tokens = self.world.tokens(self.world.rows[int(request.request_id[1:])])
        started = LiveRequest(self, replace(request, prompt_token_ids=tokens), sink)
        self.world.requests[request.request_id] = started
        return started

    def connect(self, worker: SimWorker, ways: Ways) -> None:
        assert isinstance(worker, LiveWorker)
        self.links[WorkerId(worker.config.worker_id)] = LiveLink(self, worker, ways)

    def arrived(self, link: LiveLink) -> None:
        """Its Hello is here: what waits for it in `_connect` opens the socket now."""
        waiting = self.to_come.setdefault(link.worker.config.worker_id, [])
        if not waiting:
            self.loop.settle(lambda: bool(waiting))
        waiting.pop(0).set_result(link)

    async def _connect(self, address: str) -> Any:
        future: asyncio.Future[LiveLink] = self.loop.create_future()
        self.to_come.setdefault(address, []).append(future)
        link = await future
        known = set(link.worker.server.peer_ids)
        link.connection = await WorkerConnection.open(link.worker.address)
        (link.server_peer,) = set(link.worker.server.peer_ids) - known
        link.worker.peers[link.server_peer] = link
        assert link.connection.hello == link.hello
        return link

    def follow(self, other: SimGateway, links: Sequence[Link]) -> None:
        assert isinstance(other, LiveGateway)
        teller = other
        self.loop.settle(lambda: other.gateway_id in self.sockets.connected and bool(teller.sockets._followers))
        other.placement.tell(other.gossip.news)

        def deliver(messages: Sequence[Any]) -> None:
            num_before = CountedGossip.num_heard
            teller.sockets._tell(messages)
            self.loop.settle(lambda: num_before + len(messages) == CountedGossip.num_heard)

        other.followers[self.gateway_id] = Channel(self.kernel, links, deliver)


class ScriptedRunner(FakeRunner):
    """Computes every KV cell and token; its steps take the seconds of a model."""

    def __init__(self, arena: Arena, times: StepTimeModel, max_model_len: int) -> None:
        super().__init__(arena, vocab_size=VOCAB, max_model_len=max_model_len)
        self._times = times

    def execute(self, plan: StepPlan) -> StepResult:
        step_s = self._times.step_s(step_shape(plan))
        return StepResult(plan.step_id, super().execute(plan).sampled, step_s)


class LiveWorker(SimWorker):
    """With a socket of its own."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.peers: dict[Any, LiveLink] = {}
        self.hello_to_come: wire.Hello | None = None
        self.server = WireServer(lambda: self.hello_to_come)  # type: ignore[arg-type, return-value]
        self.address = ""

    def listen(self, loop: LockstepLoop, path: Path) -> None:
        self.address = f"unix:{path}"
        self.server.listen(self.address)
        loop.servers[self.server] = self._take

    def _take(self, peer: Any, message: Any) -> None:
        link = self.peers.get(peer)
        if link is not None and not isinstance(message, PeerGone):
            link.decoded.append(message)


class LiveWorld(World):
    """`run` as any world; `tokens_of` says what the clients were told."""

    content = TOKENS

    def __init__(self, folder: str, *args: Any, **kwargs: Any) -> None:
        self.folder = folder
        self.requests: dict[str, LiveRequest] = {}
        super().__init__(*args, **kwargs)
        self.rows = {row.row: row for row in self.workload.requests}

    def make_gateway(self, gateway_id: str, region: RegionSpec) -> SimGateway:
        if not hasattr(self, "loop"):
            self.loop = LockstepLoop(self.kernel)
            num_blocks = sum(spec.num_blocks for spec in region.workers)
            self.arena = Arena.create(self.config.serving.layout, num_blocks, shared=False)
        return LiveGateway(self, gateway_id, region)

    def make_worker(self, spec: WorkerSpec, **parts: Any) -> SimWorker:
        worker = LiveWorker(**parts)
        worker.listen(self.loop, Path(self.folder) / f"{spec.worker_id}.{worker.config.epoch}")
        return worker

    def make_runner(self, spec: WorkerSpec) -> Any:
        return ScriptedRunner(self.arena, spec.times, self.config.serving.max_model_len)

    def make_transports(self, spec: WorkerSpec, wake: Callable[[], None]) -> TransportSet:
        first = self._first_block_ids[spec.worker_id]
        self.arena.close_to_writers(range(first, first + spec.num_blocks))
        return TransportSet([ShmTransport(self.arena, on_wake=wake)], arena_id=spec.box, box_id=spec.box)

    def tokens(self, row: WorkloadRequest) -> tuple[int, ...]:
        """Equal where the names of content are."""
        size = row.hash_block_size
        named = [(content * 1_000_003 + at) % VOCAB for content in row.hash_ids for at in range(size)]
        own = [(2**30 + row.row * 4096 + at) % VOCAB for at in range(row.num_prompt_tokens - len(named))]
        return tuple((named + own)[: row.num_prompt_tokens])

    def close(self) -> None:
        tasks = [task for gateway in self.gateways.values() for task in gateway.tasks]  # type: ignore[attr-defined]
        for task in tasks:
            task.cancel()
        self.loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        for server in self.loop.servers:
            server.close()
        self.loop.close()
        self.arena.close()
