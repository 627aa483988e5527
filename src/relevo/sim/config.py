"""What a simulated world consists of: workers, boxes, gateways, regions, the network between them, limits, faults.

Plain values, checked where they are built. Knows no workload: `sim.world` is given one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf

from relevo.core.errors import SettingsError
from relevo.core.kv import KVLayout
from relevo.policy.admission.admission import AdmissionLimits
from relevo.policy.handoff.state import HandoffLimits
from relevo.policy.perf.step_time import StepTimeModel
from relevo.policy.routing.router import RouterLimits, RoutingPolicy
from relevo.sim.network import LinkTraits

# Arbitrary: two hops inside a data centre, an RDMA port of 400 Gbit/s, two cities.
_RACK = LinkTraits(latency_s=50e-6)
_PORT = LinkTraits(latency_s=5e-6, bandwidth_bytes_per_s=50e9)
_CITY = LinkTraits(latency_s=0.02)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSpec:
    """One worker: a scheduler over its ranks."""

    worker_id: str
    role: str  # "prefill", "decode" or "unified"
    times: StepTimeModel
    num_blocks: int
    box: str = "box"  # workers of one box may share memory
    max_batched_tokens: int = 8192  # of one step
    max_prefill_tokens: int = 2048  # of one step while decodes run
    max_running: int = 256
    itl_target_s: float = 0.0  # see policy.worker.intake.SchedulerConfig
    num_devices: int = 1
    cores: tuple[int, ...] = ()  # that it starts on; none: unknown, and it keeps them in every role
    times_on: Callable[[int], StepTimeModel] | None = None  # given a number of cores; None: `times` on every number


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionSpec:
    """One set of workers and the gateways that share them."""

    workers: tuple[WorkerSpec, ...]
    name: str = "region"
    num_gateways: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkSpec:
    """One way each. A port is what a box has towards all others, out and in apart."""

    wire: LinkTraits = _RACK  # between a gateway and a worker
    gossip: LinkTraits = _RACK  # between gateways
    port: LinkTraits = _PORT  # of a box, for KV
    edge: LinkTraits = _CITY  # between the edge and a region
    shares_memory: bool = False  # in a box: a prompt is computed in the receiver's blocks


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingSpec:
    """What all workers and gateways of a world have in common."""

    layout: KVLayout
    max_model_len: int = 131_072
    handoff: HandoffLimits = field(default_factory=HandoffLimits)
    admission: AdmissionLimits = field(default_factory=AdmissionLimits)
    max_ahead_steps: float = 2.0  # of prompts, sent to a worker and not computed
    max_ahead_s: float = 0.5  # the same in seconds
    routing: RoutingPolicy = RoutingPolicy.TTFT
    router: RouterLimits = field(default_factory=RouterLimits)
    tenant_weights: Mapping[str, float] = field(default_factory=dict)
    enable_prefix_caching: bool = True
    heartbeat_timeout_s: float | None = None  # of a worker that stands still; None: gateways do not ask
    drain_timeout_s: float = 30.0
    restart_s: float = 1.0  # from the end of a worker's process to the next incarnation
    learns_costs: bool = False  # workers learn what steps cost while they run; otherwise they know it from the start


class FaultKind(StrEnum):
    KILL = "kill"  # a worker's process ends; another incarnation follows
    STOP = "stop"  # a worker stands still for `for_s`
    SLOW = "slow"  # a worker's steps take `times` as long, for `for_s`
    DRAIN = "drain"  # a worker is asked to leave; another incarnation follows
    CUT = "cut"  # nothing passes a link for `for_s`
    KILL_GATEWAY = "kill_gateway"  # its connections end, and its clients'


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    at_s: float
    kind: FaultKind
    target: str  # a worker's id, a link's name, a gateway's id
    for_s: float = inf
    times: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldConfig:
    regions: tuple[RegionSpec, ...]
    serving: ServingSpec
    network: NetworkSpec = NetworkSpec()
    faults: tuple[Fault, ...] = ()
    front_end_s: float = 0.0  # from a request's arrival until a gateway takes it: HTTP, tokenizing
    seed: int = 0
    jumps: bool = True  # quiet stretches are taken at once; what happens is the same
    until_s: float | None = None  # of virtual time; None: until nothing is to come

    def __post_init__(self) -> None:
        ids = [worker.worker_id for region in self.regions for worker in region.workers]
        twice = sorted({worker_id for worker_id in ids if ids.count(worker_id) > 1})
        if twice:
            raise SettingsError(f"two workers are called {twice[0]}; a world needs a name for each")
        for region in self.regions:
            if not region.workers or region.num_gateways < 1:
                raise SettingsError(
                    f"{region.name} has {len(region.workers)} workers and {region.num_gateways} "
                    "gateways; give it at least one of each"
                )
