"""Twenty-four hours of code and conversation with their rhythm, a worker's death and a tenfold burst, on a cluster that
gives workers and takes them back: requests within targets, and what was paid for them, under each rule.

The day is shortened, not thinned: each hour is `hour_s` seconds at that hour's rates, while steps, start times and
ticks take what they take. So everything changes 3600 / `hour_s` times as fast as on a real day, which is harder on a
planner: with hours of 300 s and orders of 20 s a worker takes four minutes of such a day.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import cos, pi

from relevo.core.role import Role
from relevo.planner.worker_costs import WorkerCosts, WorkerRules
from relevo.policy.scaling.enough_workers import CountLimits
from relevo.policy.scaling.modes import Mode
from relevo.policy.scaling.worker_count import CountPlanner
from relevo.sim.config import Fault, FaultKind, NetworkSpec, RegionSpec, ServingSpec, WorkerSpec, WorldConfig
from relevo.sim.day.counts import CountChange, PlannedCount, Reactive, fixed_modes
from relevo.sim.day.machine import SIXTEEN_CORES, times_on
from relevo.sim.day.outlooks import Outlooks
from relevo.sim.day.traffic import Hour, Kinds, workload_of
from relevo.sim.day.two_workers import MAX_MODEL_LEN, TARGETS
from relevo.sim.elastic_world import ElasticWorld
from relevo.sim.results import RequestResult
from relevo.telemetry.latency import Slo

PLANNER, REACTIVE = "planner", "reactive"
# All arbitrary: code in working hours, conversation in the evening, hardly anything at night.
_CODE, _TALK = (13.0, 0.1, 3.0), (20.0, 0.3, 5.0)  # the hour of most, least and most requests per second
BURST_HOUR, BURST = 3, 10.0
DEATH_HOUR = 14.5
START_S = 20.0
MOST_WORKERS = 6
CORES = 8


def hours_of(hour_s: float) -> tuple[Hour, ...]:
    found = []
    for hour in range(24):
        times = BURST if hour == BURST_HOUR else 1.0
        code, talk = (times * _wave(hour, *kind) for kind in (_CODE, _TALK))
        found.append(Hour(f"{hour:02}", hour_s, code, talk))
    return tuple(found)


def _wave(hour: int, peak: float, least: float, most: float) -> float:
    return least + (most - least) * (0.5 + 0.5 * cos((hour - peak) / 24 * 2 * pi)) ** 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockRun:
    """One day under one rule. `worker_s`: paid for."""

    rule: str
    requests: Sequence[RequestResult]
    starts_at_ns: int
    worker_s: float
    changes: Sequence[CountChange]
    num_worlds: int = 0
    num_decisions: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class AroundTheClock:
    kinds: Kinds
    hour_s: float = 300.0
    start_s: float = START_S  # from an order until a worker serves, and of a restart
    slo: Slo = TARGETS
    seed: int = 0
    num_simulated: int = 120

    @property
    def hours(self) -> tuple[Hour, ...]:
        return hours_of(self.hour_s)

    @property
    def rules(self) -> tuple[str, ...]:
        """Fixed ones are named as their modes, with the number of workers where that does not say it."""
        return (*self._fixed, REACTIVE, PLANNER)

    @property
    def usual_rules(self) -> tuple[str, ...]:
        """Of each number of workers replicas and one split, and the two that change."""
        most = range(2, MOST_WORKERS + 1)
        split = (f"{max(1, number // 3)}p{number - max(1, number // 3)}d" for number in most)
        return (*(f"{number}u" for number in most), *split, REACTIVE, PLANNER)

    @property
    def _fixed(self) -> dict[str, tuple[int, Mode]]:
        found = {}
        for number in range(2, MOST_WORKERS + 1):
            for mode in fixed_modes(_ids(number)):
                name = {"unified": f"{number}u", "hybrid": f"{number} hybrid"}.get(mode.name, mode.name)
                found[name] = (number, mode)
        return found

    def run(self, rule: str, tell: Callable[[], None] = lambda: None) -> ClockRun:
        number, mode = self._fixed.get(rule, (2, None))
        world = ElasticWorld(
            self._config(),
            workload_of(self.hours, self.kinds, self.seed),
            self.slo,
            num_at_first=number,
            start_s=self.start_s,
            tick_s=5.0,
        )
        changes: Sequence[CountChange] = ()
        planned = None
        limits = CountLimits(most=MOST_WORKERS, spare=1)  # there are targets, and workers die
        if rule == REACTIVE:
            reactive = Reactive(world, limits)
            world.on_tick, changes = reactive.tick, reactive.changes
        elif rule == PLANNER:
            planned = self._planned(world, limits)
            world.on_tick, changes = planned.tick, planned.changes
        elif mode is not None:
            world.kernel.call_at(world.traffic_at_ns - 1, _give, world, dict(mode.roles))
        result = world.run(tell)
        return ClockRun(
            rule=rule,
            requests=result.requests,
            starts_at_ns=world.traffic_at_ns,
            worker_s=world.worker_s(world.traffic_at_ns + round(24 * self.hour_s * 1e9)),
            changes=changes,
            num_worlds=planned.outlooks.num_worlds if planned is not None else 0,
            num_decisions=planned.num_decisions if planned is not None else {},
        )

    def _planned(self, world: ElasticWorld, limits: CountLimits) -> PlannedCount:
        first = world.config.regions[0].workers[0]
        costs = WorkerCosts(
            WorkerRules(
                budget_tokens=first.max_batched_tokens,
                block_size=SIXTEEN_CORES.block_size,
                max_running=first.max_running,
                itl_target_s=first.itl_target_s,
            )
        )
        outlooks = Outlooks(
            costs=costs,
            max_model_len=MAX_MODEL_LEN,
            slo=self.slo,
            surge=0.0,
            num_requests=self.num_simulated,
            seed=self.seed,
        )
        assert self.slo.ttft_s is not None
        return PlannedCount(
            world=world,
            planner=CountPlanner(limits, self.slo.ttft_s, self.start_s),
            limits=limits,
            costs=costs,
            outlooks=outlooks,
            answer_s=1.0,
        )

    def _config(self) -> WorldConfig:
        death = Fault(at_s=DEATH_HOUR * self.hour_s, kind=FaultKind.KILL, target="w0")
        return WorldConfig(
            regions=(RegionSpec(workers=_workers()),),
            serving=ServingSpec(
                layout=SIXTEEN_CORES.layout,
                max_model_len=MAX_MODEL_LEN,
                enable_prefix_caching=False,
                restart_s=self.start_s,
            ),
            network=NetworkSpec(),
            faults=(death,),
            seed=self.seed,
        )


def _give(world: ElasticWorld, roles: Mapping[str, Role]) -> None:
    world.window.set_roles(dict(roles), "from the start")


def _ids(number: int) -> list[str]:
    return [f"w{place}" for place in range(number)]


def _workers() -> tuple[WorkerSpec, ...]:
    """Each on a machine of its own."""
    return tuple(
        WorkerSpec(
            worker_id=worker_id,
            role="unified",
            times=times_on(CORES),
            num_blocks=1500,
            box=worker_id,
            max_batched_tokens=2048,
            max_prefill_tokens=512,
            max_running=128,
            itl_target_s=0.03,
        )
        for worker_id in _ids(MOST_WORKERS)
    )
