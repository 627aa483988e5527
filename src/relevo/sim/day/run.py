"""Runs one day under each rule: the modes that never change, a threshold, the planner. Same requests, same faults.

Owns the workers of the day: two on one machine, of eight cores each, whose prompts grow with cores and whose decoding
waits for memory. A worker dies once. How requests are judged is `telemetry.latency.Slo`'s; what came of it `report`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from relevo.core.events import StepCosts
from relevo.core.kv import KVGroup, KVLayout
from relevo.policy.perf.step_time import FittedStepTimes
from relevo.policy.scaling.modes import Mode
from relevo.sim.config import Fault, FaultKind, NetworkSpec, RegionSpec, ServingSpec, WorkerSpec, WorldConfig
from relevo.sim.day.rules import Change, Threshold, give_roles, modes_of_specs, planned_in
from relevo.sim.day.traffic import Hour, Kinds, workload_of
from relevo.sim.results import RequestResult
from relevo.sim.role_world import RoleWorld
from relevo.telemetry.latency import Slo

PLANNER, THRESHOLD = "planner", "threshold"
# All arbitrary: chosen so that no way of sharing the work is right for the whole day, and a death meets full workers.
HOURS = (
    Hour("night", 90.0, 0.3, 0.3),
    Hour("code", 210.0, 2.6, 0.3),
    Hour("talk", 210.0, 0.2, 4.0),
    Hour("evening", 60.0, 0.3, 0.3),
    Hour("burst", 30.0, 3.0, 3.0),  # ten times as much
    Hour("late", 90.0, 0.6, 1.2),
)
DEATH_AT_S, RESTART_S = 420.0, 15.0
TARGETS = Slo(ttft_s=1.5, itl_s=0.05)
_CORES, MAX_MODEL_LEN = 8, 16_384
LAYOUT = KVLayout("day", "float16", 64, (KVGroup.full(range(1), 1, 64),))
_START = "1p1d"


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
class Day:
    kinds: Kinds
    hours: Sequence[Hour] = HOURS
    death_at_s: float | None = DEATH_AT_S
    slo: Slo = TARGETS
    seed: int = 0
    num_simulated: int = 120  # requests of each world that the planner asks for

    @property
    def rules(self) -> tuple[str, ...]:
        return (*(mode.name for mode in self._modes), THRESHOLD, PLANNER)

    @property
    def _modes(self) -> tuple[Mode, ...]:
        return modes_of_specs(_workers())

    def run(self, rule: str, tell: Callable[[], None] = lambda: None) -> DayRun:
        """`rule`: one of `rules`. `tell` is called now and then."""
        world = RoleWorld(self._config(), workload_of(self.hours, self.kinds, self.seed), self.slo)
        modes = {mode.name: mode for mode in self._modes}
        changes: Sequence[Change] = ()
        planned = None
        if rule == PLANNER:
            planned = planned_in(world, self.slo, num_requests=self.num_simulated)
        elif rule == THRESHOLD:
            threshold = Threshold(world, self._modes, modes[_START])
            world.on_tick, changes = threshold.tick, threshold.changes
        elif rule != _START:
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
        faults = (
            () if self.death_at_s is None else (Fault(at_s=self.death_at_s, kind=FaultKind.KILL, target="decode-0"),)
        )
        return WorldConfig(
            regions=(RegionSpec(workers=_workers()),),
            serving=ServingSpec(
                layout=LAYOUT, max_model_len=MAX_MODEL_LEN, enable_prefix_caching=False, restart_s=RESTART_S
            ),
            network=NetworkSpec(shares_memory=True),
            faults=faults,
            seed=self.seed,
        )


def times_on(num_cores: int) -> FittedStepTimes:
    """Six milliseconds of a step are memory's; what a token computes is shared by the cores."""
    return FittedStepTimes(
        StepCosts(base_s=0.006 + 0.032 / num_cores, per_token_s=8e-4 / num_cores, per_kv_token_s=1e-7)
    )


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
