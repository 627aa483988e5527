"""The five workloads in sequence, at a share of what a unified server sustains of each, under every arm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from relevo.bench.arms.phases import Phase
from relevo.bench.arms.results import read_outcomes
from relevo.bench.arms.run import (
    ArmsPlan,
    capacities,
    measure_capacities,
    num_missing,
    run_arms,
)
from relevo.bench.arms.slices import Slices
from relevo.bench.workloads.report import WorkloadsReport
from relevo.core.errors import SettingsError
from relevo.telemetry.progress import Progress
from relevo.workload.phases import FIVE
from relevo.workload.phases import Phase as Traffic

MAX_LOAD = 2.0
KINDS = {kind.name: kind for kind in FIVE}


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadsOptions:
    plan: ArmsPlan
    kinds: Sequence[Traffic]
    load: float  # of what is sustained
    phase_s: float
    warm_up_s: float

    def check(self) -> None:
        if not 0.0 < self.load <= MAX_LOAD:
            raise SettingsError(f"--load must be above 0 and at most {MAX_LOAD:g}, got {self.load:g}; 0.7 is 70 %")

    def to_json(self) -> dict[str, Any]:
        return {
            **self.plan.to_json(),
            "workloads": [kind.name for kind in self.kinds],
            "load": self.load,
            "phase_s": self.phase_s,
            "warm_up_s": self.warm_up_s,
        }


def kinds_named(text: str) -> list[Traffic]:
    """Raises SettingsError."""
    names = [part.strip() for part in text.split(",") if part.strip()]
    unknown = next((name for name in names if name not in KINDS), None)
    if unknown is not None or not names or len(set(names)) < len(names):
        told = f"{unknown!r} is not known" if unknown is not None else f"{text!r} names none, or one twice"
        raise SettingsError(f"--workloads: {told}; use some of {','.join(KINDS)}")
    return [KINDS[name] for name in names]


async def compare_workloads(options: WorkloadsOptions, slices: Slices, progress: Progress) -> None:
    """As far as there is time. Raises StartError, SettingsError."""
    if await measure_capacities(options.plan, options.kinds, slices, progress):
        rates = {kind: rate for kind, (rate, _) in capacities(options.plan, slices).items()}
        await run_arms(options.plan, phases_of(options, rates), slices, progress)


def phases_of(options: WorkloadsOptions, rates: Mapping[str, float]) -> list[Phase]:
    """A warm-up with the first kind, then all."""
    phases = [
        Phase(name=kind.name, kind=kind, requests_per_s=options.load * rates[kind.name], seconds=options.phase_s)
        for kind in options.kinds
    ]
    first = phases[0]
    if options.warm_up_s <= 0:
        return phases
    warm_up = Phase(
        name="warm-up",
        kind=first.kind,
        requests_per_s=first.requests_per_s,
        seconds=options.warm_up_s,
        is_warm_up=True,
    )
    return [warm_up, *phases]


def read_report(options: WorkloadsOptions, slices: Slices) -> WorkloadsReport:
    return WorkloadsReport(
        plan=options.plan,
        load=options.load,
        capacities=capacities(options.plan, slices),
        outcomes=read_outcomes(options.plan, slices),
        num_missing=num_missing(options.plan, slices),
    )
