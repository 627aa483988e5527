"""A candidate of the planner as a simulated world: the same step times and pools, under the live policies.

Owns nothing of what is decided: candidates are `policy.scaling`'s. The CPU's memory is simulated as room for more
blocks on the workers that compute prompts, what is loaded from it as if it were on the device.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf

from relevo.core.kv import KVGroup, KVLayout
from relevo.core.role import DECODE, PREFILL, Role
from relevo.policy.scaling.candidates import Candidate, Stage
from relevo.policy.scaling.demand import Demand
from relevo.policy.scaling.screen import Targets
from relevo.policy.scaling.worker_times import WorkerTimes
from relevo.sim.config import Fault, FaultKind, NetworkSpec, RegionSpec, ServingSpec, WorkerSpec, WorldConfig
from relevo.sim.network import LinkTraits
from relevo.sim.planned_load import Piece
from relevo.sim.report import ReportOptions, SimReport, report_world
from relevo.sim.world import World
from relevo.telemetry.latency import Slo

_PORT_LATENCY_S = 5e-6
_DRAIN_FRACTION = 0.1  # of the arrivals that count: nothing follows them


@dataclass(slots=True)
class PlannedWorlds:
    """Simulates candidates, each question once."""

    times: WorkerTimes
    demand: Demand
    piece: Piece
    targets: Targets
    block_size: int
    seed: int = 0
    _known: dict[tuple[Candidate, float, Role | None], SimReport] = field(default_factory=dict)

    @property
    def num_simulated(self) -> int:
        return len(self._known)

    def report(self, candidate: Candidate, load: float = 1.0, dies: Role | None = None) -> SimReport:
        """At so many times the rate. `dies`: a worker of that role does as counting begins, and starts again."""
        key = (candidate, load, dies)
        if key not in self._known:
            self._known[key] = self._simulate(candidate, load, dies)
        return self._known[key]

    def _simulate(self, candidate: Candidate, load: float, dies: Role | None) -> SimReport:
        workload, warm_up_s = self.piece.at(self.demand.requests_per_s * load)
        last_s = workload.requests[-1].arrived_at_s or 0.0
        config = self._config(candidate)
        if dies is not None:
            fault = Fault(at_s=warm_up_s, kind=FaultKind.KILL, target=f"{dies}-0")
            config = _with_fault(config, fault)
        prices = {str(stage.role): stage.kind.price_per_h for stage in candidate.stages}
        options = ReportOptions(
            slo=Slo(ttft_s=self.targets.ttft_s, itl_s=self.targets.itl_s),
            warm_up_s=warm_up_s,
            drain_s=_DRAIN_FRACTION * (last_s - warm_up_s),
            prices_per_h={role: price for role, price in prices.items() if price is not None} or None,
        )
        return report_world(candidate.label, World(config, workload).run(), options)

    def _config(self, candidate: Candidate) -> WorldConfig:
        assumed, shape = self.times.assumed, self.times.shape
        token_bytes = round(shape.growing_kv_bytes_per_token(assumed.kv_value_bytes))
        layout = KVLayout(shape.name, "float8_e4m3", self.block_size, (KVGroup.latent([0], token_bytes),))
        workers = tuple(
            self._worker(stage, index, token_bytes) for stage in candidate.stages for index in range(stage.num_workers)
        )
        bandwidth = assumed.link_bytes_per_s
        if bandwidth is None:
            ports = [stage.kind.device.network_bytes_per_s * stage.kind.num_devices for stage in candidate.stages]
            bandwidth = min(ports) if candidate.is_split else inf
        return WorldConfig(
            regions=(RegionSpec(workers=workers),),
            serving=ServingSpec(layout=layout, max_model_len=self.demand.longest_tokens + 1, restart_s=assumed.start_s),
            network=NetworkSpec(port=LinkTraits(latency_s=_PORT_LATENCY_S, bandwidth_bytes_per_s=bandwidth)),
            front_end_s=max(self.times.front_end_s(stage.kind) for stage in candidate.stages),
            seed=self.seed,
        )

    def _worker(self, stage: Stage, index: int, token_bytes: int) -> WorkerSpec:
        kind = stage.kind
        num_blocks = kind.memory.num_blocks
        if stage.role != DECODE:
            num_blocks += int(self.times.assumed.cpu_cache_bytes / (token_bytes * self.block_size))
        chunk = kind.chunk_tokens * (kind.parallelism.attention_data if stage.role == PREFILL else 1)
        return WorkerSpec(
            worker_id=f"{stage.role}-{index}",
            role=str(stage.role),
            times=self.times.of(kind),
            num_blocks=num_blocks,
            box=f"{stage.role}-{index}",
            max_batched_tokens=chunk + (0 if stage.role == PREFILL else kind.max_rows),
            max_prefill_tokens=chunk,
            max_running=kind.max_rows,
            num_devices=kind.num_devices,
        )


def _with_fault(config: WorldConfig, fault: Fault) -> WorldConfig:
    return WorldConfig(
        regions=config.regions,
        serving=config.serving,
        network=config.network,
        faults=(fault,),
        front_end_s=config.front_end_s,
        seed=config.seed,
    )


def held(report: SimReport, targets: Targets) -> bool:
    """Whether the steady phase kept both promises; what cannot be told was not kept."""
    ttft_s, itl_s = (report.steady_latencies[name].value("p90") for name in ("ttft_s", "itl_s"))
    return ttft_s is not None and ttft_s <= targets.ttft_s and (itl_s is None or itl_s <= targets.itl_s)
