"""One workload on the same two workers of a machine under each rule: modes that never change, a threshold, the planner.

How requests are judged is `telemetry.latency.Slo`'s; what came of it `report`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from relevo.policy.scaling.modes import Mode
from relevo.sim.config import Fault, NetworkSpec, RegionSpec, ServingSpec, WorldConfig
from relevo.sim.day.machine import SIXTEEN_CORES, Machine
from relevo.sim.day.rules import Change, Threshold, give_roles, modes_of_specs, planned_in
from relevo.sim.results import RequestResult
from relevo.sim.role_world import RoleWorld
from relevo.telemetry.latency import Slo
from relevo.workload.requests import Workload

PLANNER, THRESHOLD = "planner", "threshold"
RESTART_S = 15.0
MAX_MODEL_LEN = 16_384
TARGETS = SIXTEEN_CORES.slo


@dataclass(frozen=True, slots=True, kw_only=True)
class DayRun:
    """One day under one rule."""

    rule: str
    requests: Sequence[RequestResult]
    starts_at_ns: int
    start_mode: str = SIXTEEN_CORES.start_mode
    changes: Sequence[Change] = ()
    num_worlds: int = 0  # that the planner simulated
    num_decisions: Mapping[str, int]  # by verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoWorkers:
    workload: Workload
    machine: Machine = SIXTEEN_CORES
    slo: Slo = TARGETS
    seed: int = 0
    num_simulated: int = 120  # requests of each world that the planner asks for
    faults: tuple[Fault, ...] = ()
    has_caches: bool = False

    def run(self, rule: str, tell: Callable[[], None] = lambda: None) -> DayRun:
        """`rule`: one of `rules()`. `tell` is called now and then."""
        world = RoleWorld(self._config(), self.workload, self.slo)
        modes, start = {mode.name: mode for mode in modes_on(self.machine)}, self.machine.start_mode
        changes: Sequence[Change] = ()
        planned = None
        if rule == PLANNER:
            planned = planned_in(world, self.slo, num_requests=self.num_simulated, answer_s=self.machine.answer_s)
        elif rule == THRESHOLD:
            threshold = Threshold(world, tuple(modes.values()), modes[start])
            world.on_tick, changes = threshold.tick, threshold.changes
        elif rule != start:
            world.kernel.call_at(world.traffic_at_ns - 1, give_roles, world, modes[rule], "from the start")
        result = world.run(tell)
        return DayRun(
            rule=rule,
            requests=result.requests,
            starts_at_ns=world.traffic_at_ns,
            start_mode=start,
            changes=planned.changes if planned is not None else changes,
            num_worlds=planned.outlooks.num_worlds if planned is not None else 0,
            num_decisions=dict(planned.planning.num_decisions) if planned is not None else {},
        )

    def _config(self) -> WorldConfig:
        serving = ServingSpec(
            layout=self.machine.layout,
            max_model_len=MAX_MODEL_LEN,
            enable_prefix_caching=self.has_caches,
            restart_s=RESTART_S,
        )
        return WorldConfig(
            regions=(RegionSpec(workers=self.machine.workers()),),
            serving=serving,
            network=NetworkSpec(shares_memory=True),
            faults=self.faults,
            seed=self.seed,
        )


def rules() -> tuple[str, ...]:
    return (*(mode.name for mode in modes_on(SIXTEEN_CORES)), THRESHOLD, PLANNER)


def modes_on(machine: Machine) -> tuple[Mode, ...]:
    return modes_of_specs(machine.workers())
