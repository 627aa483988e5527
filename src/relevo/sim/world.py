"""A simulated world: workers, gateways and clients of one configuration, run over one workload.

Owns which of them are there and what befalls them. Everything that decides is what a live server runs: dispatchers,
admission, routers, prefix indexes, membership, schedulers, caches, step loops. What is modelled: the seconds of a step
(`StepTimeModel`), the network (`sim.network`), processes, and prompts, which are lengths and names of content.

    World(config, workload).run() -> WorldResult

Nothing is shared between worlds. The same configuration, workload and seed give the same result and decision log, byte
for byte.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from relevo.core.decisions import DecisionLog
from relevo.core.handoff import Reach
from relevo.core.ids import WorkerId, WorkerRef
from relevo.core.ports import ModelRunner
from relevo.core.request import EngineRequest
from relevo.kv.transport_set import TransportSet
from relevo.orchestrator.ports import OutputSink, RequestStarter, StartedRequest
from relevo.policy.perf.step_costs import StepCostModel
from relevo.policy.worker.content import TokenContent
from relevo.policy.worker.scheduler import SchedulerConfig
from relevo.sim.clients import Client, Habits
from relevo.sim.config import Fault, FaultKind, RegionSpec, WorkerSpec, WorldConfig
from relevo.sim.edge import Edge
from relevo.sim.gateway import SimGateway, Ways
from relevo.sim.kernel import Kernel, seconds
from relevo.sim.network import Link, LinkTraits
from relevo.sim.prompts import VIRTUAL, Text, Texts
from relevo.sim.quiet import Quiet
from relevo.sim.results import LinkResult, RequestOutcome, WorkerResult, WorldResult
from relevo.sim.silence import errors_only
from relevo.sim.tally import Tally
from relevo.sim.transport import KVNetwork
from relevo.sim.worker import ModelledRunner, SettledCosts, SimWorker
from relevo.workload.requests import Workload, WorkloadRequest

_TRAFFIC_AFTER_S = 0.1  # arbitrary: by then every gateway has every worker; the workload's clock starts


class World:
    """A subclass may give it other runners, transports or gateways."""

    content: TokenContent = VIRTUAL

    def __init__(
        self,
        config: WorldConfig,
        workload: Workload,
        *,
        habits: Callable[[WorkloadRequest], Habits] = lambda row: Habits(),
        decisions: DecisionLog | None = None,
        on_end: Callable[[Client], None] = lambda client: None,
    ) -> None:
        """`on_end` is told of each client whose request has its end."""
        self._on_end = on_end
        self.config = config
        self.kernel = Kernel(config.seed)
        self.workers: dict[str, SimWorker] = {}  # the incarnations that are there
        self.gateways: dict[str, SimGateway] = {}
        self.links: dict[str, Link] = {}
        self.result = WorldResult()
        self.clients: dict[int, Client] = {}  # whose requests have no end yet, by row
        self.workload = workload
        self._habits = habits
        self._tally = Tally(decisions)
        self.quiet = Quiet.of(config)
        self._parties: set[tuple[str, bool, int]] = set()  # of requests so far
        self._num_to_come = 0  # arrivals that have their time
        self._texts = Texts()
        self._specs = {spec.worker_id: spec for region in config.regions for spec in region.workers}
        self._region_of = {spec.worker_id: region for region in config.regions for spec in region.workers}
        self._first_block_ids = _first_block_ids(config.regions)
        self._epochs: dict[str, int] = dict.fromkeys(self._specs, 0)
        self._gone: dict[str, WorkerResult] = {}  # what former incarnations did
        self._kv = KVNetwork(self.kernel, self._kv_way)
        self._children = _children(workload.requests)
        self.traffic_at_ns = seconds(_TRAFFIC_AFTER_S)
        for region in config.regions:
            for index in range(region.num_gateways):
                self._add_gateway(region, index)
        self._entrances: dict[str, _Entrance] = {
            region.name: _Entrance(self, region.name, self.kernel.rng(f"clients of {region.name}"))
            for region in config.regions
        }
        edge = Edge(self.kernel, dict(self._entrances), self._edge_links, self.kernel.rng("edge"))
        self._door: RequestStarter = edge if len(config.regions) > 1 else next(iter(self._entrances.values()))

    def run(self, tell: Callable[[], None] = lambda: None) -> WorldResult:
        """`tell` is called now and then, for a progress bar."""
        until_s = self.config.until_s
        with errors_only():
            self.start()
            self.kernel.run(None if until_s is None else self.traffic_at_ns + seconds(until_s), tell)
            return self.finish()

    def start(self) -> None:
        """Everything is there, and what the workload and the faults bring is to come."""
        for worker_id in self._specs:
            self.start_worker(worker_id)
        for gateway in self.gateways.values():
            for other in self.gateways.values():
                if other is not gateway and other.region is gateway.region:
                    link = self.link(f"{gateway.gateway_id}>{other.gateway_id}", self.config.network.gossip)
                    other.follow(gateway, (link,))
        for row in self.workload.requests:
            if not row.is_closed_loop:
                self._num_to_come += 1
                at_ns = self.traffic_at_ns + seconds(row.arrived_at_s or 0.0)
                self.kernel.call_at(at_ns, self._arrive, row)
        for fault in self.config.faults:
            self.kernel.call_at(self.traffic_at_ns + seconds(fault.at_s), self._strike, fault)

    def finish(self) -> WorldResult:
        """What came of it. Call it once."""
        self.quiet.catch_up()
        for client in self.clients.values():
            self._count_decisions(client)
        result = self.result
        result.ended_at_ns = self.kernel.now_ns()
        result.started_at_ns = min((each.arrived_at_ns for each in result.requests), default=self.traffic_at_ns)
        result.num_events = self.kernel.num_events
        result.num_handoffs = self._tally.num_handoffs
        result.workers = [self._worker_result(worker_id) for worker_id in self._specs]
        result.links = [
            LinkResult(name=link.name, num_bytes=link.num_bytes, busy_ns=link.busy_ns)
            for link in self.links.values()
            if link.num_bytes
        ]
        return result

    # ---- parts -------------------------------------------------------------------------------------------------------

    def link(self, name: str, traits: LinkTraits) -> Link:
        """One way, by the name `from>to`."""
        link = self.links.get(name)
        if link is None:
            link = self.links[name] = Link(name, traits, self.kernel.rng(f"link {name}"))
        return link

    def _ways(self, gateway_id: str, worker_id: str) -> Ways:
        wire = self.config.network.wire
        return (self.link(f"{gateway_id}>{worker_id}", wire),), (self.link(f"{worker_id}>{gateway_id}", wire),)

    def _edge_links(self, region: str) -> tuple[Link, Link]:
        traits = self.config.network.edge
        return self.link(f"edge>{region}", traits), self.link(f"{region}>edge", traits)

    def _kv_way(self, sender: str, receiver: str) -> Sequence[Link]:
        port = self.config.network.port
        return self.link(f"{sender}>kv", port), self.link(f"kv>{receiver}", port)

    def _add_gateway(self, region: RegionSpec, index: int) -> None:
        gateway_id = f"{region.name}-gateway-{index}" if len(self.config.regions) > 1 else f"gateway-{index}"
        self.gateways[gateway_id] = self.make_gateway(gateway_id, region)

    def make_gateway(self, gateway_id: str, region: RegionSpec) -> SimGateway:
        return SimGateway(
            self.kernel,
            gateway_id,
            region,
            self.config.serving,
            self._kill_incarnation,
            self.quiet,
            has_traffic=lambda: self._num_to_come > 0 or bool(self.clients),
            decisions=self._tally,
        )

    # ---- workers -----------------------------------------------------------------------------------------------------

    def start_worker(self, worker_id: str) -> None:
        """The next incarnation; every gateway connects to it."""
        self._epochs[worker_id] += 1
        spec, region, serving = self._specs[worker_id], self._region_of[worker_id], self.config.serving
        worker = self.workers[worker_id] = self.make_worker(
            spec,
            kernel=self.kernel,
            config=self._scheduler_config(spec),
            role=spec.role,
            runner=self.make_runner(spec),
            costs=self._costs(spec),
            make_transports=lambda wake: self.make_transports(spec, wake),
            on_exit=self._drained,
            may_jump=self.quiet.may_jump,
            latency_ns=self.quiet.latency_ns,
            jumping=self.quiet.jumping,
            decisions=self._tally,
            drain_timeout_s=serving.drain_timeout_s,
            cores=spec.cores,
            times_on=spec.times_on,
        )
        for gateway in self.gateways.values():
            if gateway.region is region:
                gateway.connect(worker, self._ways(gateway.gateway_id, worker_id))

    def make_worker(self, spec: WorkerSpec, **parts: Any) -> SimWorker:
        return SimWorker(**parts)

    def make_runner(self, spec: WorkerSpec) -> ModelRunner:
        serving = self.config.serving
        return ModelledRunner(serving.layout, spec.times, max_model_len=serving.max_model_len)

    def make_transports(self, spec: WorkerSpec, wake: Callable[[], None]) -> TransportSet:
        layout, shares = self.config.serving.layout, self.config.network.shares_memory
        reaches = (Reach.ARENA, Reach.NETWORK) if shares else (Reach.NETWORK,)
        ends = [self._kv.join(spec.box, spec.worker_id, layout, wake, reach=reach) for reach in reaches]
        return TransportSet(ends, arena_id=spec.box if shares else spec.worker_id, box_id=spec.box)

    def _costs(self, spec: WorkerSpec) -> StepCostModel:
        serving = self.config.serving
        if serving.learns_costs:
            return StepCostModel()
        return SettledCosts(spec.times, spec.max_batched_tokens, serving.max_model_len, spec.times_on)

    def _scheduler_config(self, spec: WorkerSpec) -> SchedulerConfig:
        serving = self.config.serving
        return SchedulerConfig(
            worker_id=WorkerId(spec.worker_id),
            epoch=self._epochs[spec.worker_id],
            first_block_id=self._first_block_ids[spec.worker_id],
            num_blocks=spec.num_blocks,
            block_size=serving.layout.block_size,
            max_batched_tokens=spec.max_batched_tokens,
            max_prefill_tokens=spec.max_prefill_tokens,
            max_running=spec.max_running,
            itl_target_s=spec.itl_target_s,
            max_model_len=serving.max_model_len,
            enable_prefix_caching=serving.enable_prefix_caching,
            tenant_weights=serving.tenant_weights,
            content=self.content,
        )

    def kill_worker(self, worker_id: str) -> None:
        """Its process ends, if there is one; the next incarnation follows."""
        worker = self.workers.pop(worker_id, None)
        if worker is not None:
            worker.kill()
            self._follow_up(worker)

    def _drained(self, worker: SimWorker) -> None:
        del self.workers[worker.config.worker_id]
        self._follow_up(worker)

    def _follow_up(self, worker: SimWorker) -> None:
        self._count(worker)
        self.kernel.call_after(seconds(self.config.serving.restart_s), self.start_worker, worker.config.worker_id)

    def _kill_incarnation(self, worker: WorkerRef, reason: str) -> None:
        """A gateway asks for it."""
        if self._epochs[worker.worker_id] == worker.epoch:
            self.kernel.call_after(0, self.kill_worker, worker.worker_id)

    def _worker_result(self, worker_id: str) -> WorkerResult:
        worker = self.workers.get(worker_id)
        if worker is not None:
            self._count(worker)
        spec = self._specs[worker_id]
        result = self._gone.get(worker_id, WorkerResult(worker_id=worker_id, role=spec.role))
        result.num_evicted_blocks = self._tally.num_evicted_blocks[worker_id]
        return result

    def _count(self, worker: SimWorker) -> None:
        """Add what an incarnation did."""
        spec, counters = self._specs[worker.config.worker_id], worker.counters()
        total = self._gone.setdefault(
            spec.worker_id,
            WorkerResult(
                worker_id=spec.worker_id, role=spec.role, num_devices=spec.num_devices, num_blocks=spec.num_blocks
            ),
        )
        total.num_steps += counters.num_steps
        total.busy_ns += worker.busy_ns
        total.num_prefill_tokens += counters.num_prefill_tokens
        total.num_output_tokens += counters.num_generation_tokens
        total.num_preemptions += counters.num_preemptions
        total.most_held_blocks = max(total.most_held_blocks, worker.most_held_blocks)
        runner = worker.runner
        if isinstance(runner, ModelledRunner) and runner.knows_limits:
            total.bytes_limit_ns = (total.bytes_limit_ns or 0) + seconds(runner.bytes_limit_s)
            total.products_limit_ns = (total.products_limit_ns or 0) + seconds(runner.products_limit_s)
        self.result.kv_transfer_bytes += counters.transferred_bytes

    # ---- clients -----------------------------------------------------------------------------------------------------

    def _arrive(self, row: WorkloadRequest) -> None:
        self._num_to_come -= 1
        habits = self._habits(row)
        client = Client(self.kernel, row, habits, self._text(row, habits.salt), self._ended, self.quiet.arrivals)
        self.clients[row.row] = client
        request = client.request()
        self._parties.add((habits.terms.tenant, habits.terms.is_batch, habits.priority))
        self.quiet.has_tenants = len(self._parties) > 1
        if habits.leaves_after_tokens is not None or habits.num_samples > 1:
            self.quiet.watched.add(request.request_id)
        self.result.requests.append(client.result)
        if self.config.front_end_s:
            self.kernel.call_after(seconds(self.config.front_end_s), self._enter, client, request)
        else:
            self._enter(client, request)

    def _enter(self, client: Client, request: EngineRequest) -> None:
        client.started(self._door.start(request, client))

    def _ended(self, client: Client) -> None:
        """Turns that waited for this one follow, if it was answered."""
        del self.clients[client.row.row]
        self._count_decisions(client)
        self.quiet.watched.discard(f"r{client.row.row}")
        self._on_end(client)
        if client.result.outcome is RequestOutcome.FINISHED:
            for child in self._children.get(client.row.row, ()):
                self._num_to_come += 1
                self.kernel.call_after(seconds(child.gap_s or 0.0), self._arrive, child)

    def _count_decisions(self, client: Client) -> None:
        request_id, tally, result = f"r{client.row.row}", self._tally, client.result
        result.decode_worker = tally.decode_worker.get(request_id)
        result.num_preemptions = tally.num_preemptions[request_id]
        result.num_restarts = tally.num_restarts[request_id]
        tally.forget(request_id)

    def _text(self, row: WorkloadRequest, salt: bytes) -> Text:
        """With the ids of the turn that goes on from it, if there is one: its answer is found by that turn's prompt."""
        ids, size = row.hash_ids, row.hash_block_size
        for child in self._children.get(row.row, ()):
            if child.hash_block_size == size and list(child.hash_ids[: len(ids)]) == list(ids):
                ids = child.hash_ids
                break
        return self._texts.text(ids, size, salt)

    # ---- faults ------------------------------------------------------------------------------------------------------

    def _strike(self, fault: Fault) -> None:
        self.quiet.catch_up()
        worker = self.workers.get(fault.target)
        match fault.kind:
            case FaultKind.KILL:
                self.kill_worker(fault.target)
            case FaultKind.STOP if worker is not None:
                worker.stop(fault.for_s)
            case FaultKind.SLOW if worker is not None:
                worker.slow_down(fault.times, fault.for_s)
            case FaultKind.DRAIN if worker is not None:
                worker.drain()
            case FaultKind.CUT:
                self._cut(fault)
            case FaultKind.KILL_GATEWAY:
                self._kill_gateway(fault.target)

    def _cut(self, fault: Fault) -> None:
        for link in [link for name, link in self.links.items() if fault.target in (name, *name.split(">"))]:
            link.cut()
            if fault.for_s != float("inf"):
                self.kernel.call_after(seconds(fault.for_s), link.heal)

    def _kill_gateway(self, gateway_id: str) -> None:
        dead = self.gateways[gateway_id]
        dead.die()
        for other in self.gateways.values():
            if other is not dead and other.region is dead.region and not other.is_dead:
                other.withdraw(gateway_id)


@dataclass(frozen=True, slots=True)
class _Entrance:
    """Of one region: a request reaches one of its gateways at random, as connections to one port do."""

    world: World
    region: str
    rng: Random

    @property
    def is_up(self) -> bool:
        return bool(self._able())

    def start(self, request: EngineRequest, sink: OutputSink) -> StartedRequest:
        able = self._able()
        return (able[0] if len(able) == 1 else self.rng.choice(able)).start(request, sink)

    def _able(self) -> list[SimGateway]:
        gateways = self.world.gateways.values()
        return [gateway for gateway in gateways if gateway.region.name == self.region and not gateway.is_dead]


def _first_block_ids(regions: Sequence[RegionSpec]) -> dict[str, int]:
    """Ids are unique, so that boxes may share them."""
    first_ids, next_id = {}, 0
    for spec in (spec for region in regions for spec in region.workers):
        first_ids[spec.worker_id] = next_id
        next_id += spec.num_blocks
    return first_ids


def _children(rows: Sequence[WorkloadRequest]) -> dict[int, list[WorkloadRequest]]:
    """Of each row, those that wait for its answer."""
    children: dict[int, list[WorkloadRequest]] = {}
    for row in rows:
        if row.parent is not None and row.is_closed_loop:
            children.setdefault(row.parent, []).append(row)
    return children
