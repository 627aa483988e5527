"""A day of code and conversation on two workers, under each rule: a burst, and a worker that dies once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from relevo.sim.config import Fault, FaultKind
from relevo.sim.day.traffic import Hour, Kinds, workload_of
from relevo.sim.day.two_workers import TARGETS, DayRun, TwoWorkers, rules
from relevo.telemetry.latency import Slo

# All arbitrary: chosen so that no way of sharing the work is right for the whole day, and a death meets full workers.
HOURS = (
    Hour("night", 90.0, 0.3, 0.3),
    Hour("code", 210.0, 2.6, 0.3),
    Hour("talk", 210.0, 0.2, 4.0),
    Hour("evening", 60.0, 0.3, 0.3),
    Hour("burst", 30.0, 3.0, 3.0),  # ten times as much
    Hour("late", 90.0, 0.6, 1.2),
)
DEATH_AT_S = 420.0


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
        return rules()

    def run(self, rule: str, tell: Callable[[], None] = lambda: None) -> DayRun:
        """`rule`: one of `rules`. `tell` is called now and then."""
        at_s = self.death_at_s
        faults = () if at_s is None else (Fault(at_s=at_s, kind=FaultKind.KILL, target="decode-0"),)
        workload = workload_of(self.hours, self.kinds, self.seed)
        two = TwoWorkers(
            workload=workload, slo=self.slo, seed=self.seed, num_simulated=self.num_simulated, faults=faults
        )
        return two.run(rule, tell)
