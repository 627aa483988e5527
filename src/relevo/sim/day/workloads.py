"""The five workloads in sequence on two simulated workers: the twin of what `relevo bench workloads` measures live.

As there, each kind comes in open loop at a share of what a unified server sustains of it with clients that wait, which
is simulated first. Requests, lengths and caches are those of `workload.open_loop`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from relevo.sim.day.machine import SIXTEEN_CORES, Machine
from relevo.sim.day.traffic import Hour
from relevo.sim.day.two_workers import DayRun, TwoWorkers, rules
from relevo.telemetry.latency import Slo
from relevo.workload.open_loop import Scale, open_loop
from relevo.workload.phases import FIVE
from relevo.workload.phases import Phase as Traffic
from relevo.workload.requests import Workload, WorkloadRequest

_CLIENTS, _TURNS = 16, 10  # that wait for their answers, and how often each asks. Arbitrary
_IDS_APART = 31  # between seeds of phases; more than there are phases


@dataclass(slots=True, kw_only=True)
class FiveWorkloads:
    phase_s: float = 120.0
    load: float = 0.7  # of what a unified server sustains
    scale: Scale = SIXTEEN_CORES.scale
    kinds: Sequence[Traffic] = FIVE
    machine: Machine = SIXTEEN_CORES
    seed: int = 0
    num_simulated: int = 120
    rates: dict[str, float] = field(default_factory=dict)  # requests per second that are sustained, once simulated

    @property
    def slo(self) -> Slo:
        return self.machine.slo

    @property
    def rules(self) -> tuple[str, ...]:
        return rules()

    @property
    def hours(self) -> tuple[Hour, ...]:
        """Of the report: one for each kind."""
        return tuple(Hour(kind.name, self.phase_s, 0.0, 0.0) for kind in self.kinds)

    def run(self, rule: str, tell: Callable[[], None] = lambda: None) -> DayRun:
        """`rule`: one of `rules`. `tell` is called now and then."""
        return self._on(Workload(requests=self._requests())).run(rule, tell)

    def rate_of(self, kind: Traffic) -> float:
        """Requests per second that a unified server sustains of it."""
        if kind.name not in self.rates:
            made = open_loop(
                kind,
                10.0 * _CLIENTS,
                60.0,
                self.seed,
                scale=self.scale,
                num_sessions=2 * _CLIENTS,
                block_size=self.machine.block_size,
            )
            run = self._on(Workload(requests=_waiting(made[: _CLIENTS * _TURNS]))).run("unified")
            ends_s = sorted(each.ended_at_ns / 1e9 for each in run.requests if each.ended_at_ns is not None)
            first, last = len(ends_s) // 5, 4 * len(ends_s) // 5  # they begin together and do not end so
            self.rates[kind.name] = (last - first) / (ends_s[last] - ends_s[first])
        return self.rates[kind.name]

    def _on(self, workload: Workload) -> TwoWorkers:
        return TwoWorkers(
            workload=workload,
            machine=self.machine,
            slo=self.slo,
            seed=self.seed,
            num_simulated=self.num_simulated,
            has_caches=True,
        )

    def _requests(self) -> list[WorkloadRequest]:
        found = list[WorkloadRequest]()
        for place, kind in enumerate(self.kinds):
            rate, seed = self.load * self.rate_of(kind), self.seed * _IDS_APART + place
            made = open_loop(kind, rate, self.phase_s, seed, scale=self.scale, block_size=self.machine.block_size)
            found += [replace(one, arrived_at_s=(one.arrived_at_s or 0.0) + place * self.phase_s) for one in made]
        return [replace(one, row=row) for row, one in enumerate(found)]


def _waiting(requests: Sequence[WorkloadRequest]) -> list[WorkloadRequest]:
    """Of so many clients, each of which asks when it has its answer."""
    return [
        replace(one, row=row, arrived_at_s=0.0, gap_s=None, parent=None)
        if row < _CLIENTS
        else replace(one, row=row, arrived_at_s=None, gap_s=0.0, parent=row - _CLIENTS)
        for row, one in enumerate(requests)
    ]
