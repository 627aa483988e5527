"""One workload on the same two workers under each rule: modes that never change, a threshold, the planner.

Owns the workers: two on one machine, of eight cores each, whose prompts grow with cores and whose decoding waits for
memory. How requests are judged is `telemetry.latency.Slo`'s; what came of it `report`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from relevo.core.events import StepCosts
from relevo.core.kv import KVGroup, KVLayout
from relevo.policy.perf.step_time import FittedStepTimes
from relevo.policy.scaling.modes import Mode
from relevo.sim.config import Fault, NetworkSpec, RegionSpec, ServingSpec, WorkerSpec, WorldConfig
from relevo.sim.day.rules import Change, Threshold, give_roles, modes_of_specs, planned_in
from relevo.sim.results import RequestResult
from relevo.sim.role_world import RoleWorld
from relevo.telemetry.latency import Slo
from relevo.workload.requests import Workload

PLANNER, THRESHOLD = "planner", "threshold"
RESTART_S = 15.0
TARGETS = Slo(ttft_s=1.5, itl_s=0.05)
MAX_MODEL_LEN = 16_384
LAYOUT = KVLayout("day", "float16", 64, (KVGroup.full(range(1), 1, 64),))
_CORES = 8
START_MODE = "1p1d"


@dataclass(frozen=True, slots=True, kw_only=True)
class DayRun:
    """One day under one rule."""

    rule: str
    requests: Sequence[RequestResult]
    starts_at_ns: int
    changes: Sequence[Change] = ()
    num_worlds: int = 0  # that the planner simulated
    num_decisions: Mapping[str, int]  # by verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoWorkers:
    workload: Workload
    slo: Slo = TARGETS
    seed: int = 0
    num_simulated: int = 120  # requests of each world that the planner asks for
    faults: tuple[Fault, ...] = ()
    has_caches: bool = False

    def run(self, rule: str, tell: Callable[[], None] = lambda: None) -> DayRun:
        """`rule`: one of `rules()`. `tell` is called now and then."""
        world = RoleWorld(self._config(), self.workload, self.slo)
        modes = {mode.name: mode for mode in _modes()}
        changes: Sequence[Change] = ()
        planned = None
        if rule == PLANNER:
            planned = planned_in(world, self.slo, num_requests=self.num_simulated)
        elif rule == THRESHOLD:
            threshold = Threshold(world, _modes(), modes[START_MODE])
            world.on_tick, changes = threshold.tick, threshold.changes
        elif rule != START_MODE:
            world.kernel.call_at(world.traffic_at_ns - 1, give_roles, world, modes[rule], "from the start")
        result = world.run(tell)
        return DayRun(
            rule=rule,
            requests=result.requests,
            starts_at_ns=world.traffic_at_ns,
            changes=planned.changes if planned is not None else changes,
            num_worlds=planned.outlooks.num_worlds if planned is not None else 0,
            num_decisions=dict(planned.planning.num_decisions) if planned is not None else {},
        )

    def _config(self) -> WorldConfig:
        serving = ServingSpec(
            layout=LAYOUT, max_model_len=MAX_MODEL_LEN, enable_prefix_caching=self.has_caches, restart_s=RESTART_S
        )
        return WorldConfig(
            regions=(RegionSpec(workers=_workers()),),
            serving=serving,
            network=NetworkSpec(shares_memory=True),
            faults=self.faults,
            seed=self.seed,
        )


def rules() -> tuple[str, ...]:
    return (*(mode.name for mode in _modes()), THRESHOLD, PLANNER)


def times_on(num_cores: int) -> FittedStepTimes:
    """Six milliseconds of a step are memory's; what a token computes is shared by the cores."""
    return FittedStepTimes(
        StepCosts(base_s=0.006 + 0.032 / num_cores, per_token_s=8e-4 / num_cores, per_kv_token_s=1e-7)
    )


def _modes() -> tuple[Mode, ...]:
    return modes_of_specs(_workers())


def _workers() -> tuple[WorkerSpec, ...]:
    return tuple(
        WorkerSpec(
            worker_id=f"{role}-0",
            role=role,
            times=times_on(_CORES),
            num_blocks=1500,
            max_batched_tokens=2048,
            max_prefill_tokens=512,
            max_running=128,
            itl_target_s=0.03,
            cores=tuple(range(_CORES * place, _CORES * (place + 1))),
            times_on=times_on,
        )
        for place, role in enumerate(("prefill", "decode"))
    )
