"""Agent traffic at several shares of what the throughput-best unified server sustains, under every arm.

One server of each arm meets all loads, from the least to the most, with a stretch that is not counted before each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from relevo.bench.arms.phases import Phase
from relevo.bench.arms.results import read_outcomes
from relevo.bench.arms.run import (
    ArmsPlan,
    capacities,
    capacity_name,
    measure_capacities,
    num_missing,
    run_arms,
)
from relevo.bench.arms.slices import Slices
from relevo.bench.frontier.report import FrontierReport
from relevo.core.errors import SettingsError
from relevo.telemetry.progress import Progress
from relevo.workload.phases import AGENTS

MAX_PERCENT = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontierOptions:
    """`settle_s`: before each load, at that load."""

    plan: ArmsPlan
    percents: Sequence[int]
    load_s: float
    settle_s: float

    def check(self) -> None:
        if list(self.percents) != sorted(set(self.percents)) or self.percents[-1] > MAX_PERCENT:
            raise SettingsError(f"--loads are percents up to {MAX_PERCENT}, from the least to the most: 60,75,90")
        names = {arm.name for arm in self.plan.arms}
        missing = [arm.name for arm in self.plan.capacity_arms if arm.name not in names]
        if missing:
            raise SettingsError(
                f"--capacity-arms {', '.join(missing)}: the best of them is what the others are compared with, so each "
                "has to be among --arms, too"
            )

    def to_json(self) -> dict[str, Any]:
        return {
            **self.plan.to_json(),
            "percents": list(self.percents),
            "load_s": self.load_s,
            "settle_s": self.settle_s,
        }


async def compare_frontier(options: FrontierOptions, slices: Slices, progress: Progress) -> None:
    """As far as there is time. Raises StartError, SettingsError."""
    if await measure_capacities(options.plan, [AGENTS], slices, progress):
        rate, _ = capacities(options.plan, slices)[AGENTS.name]
        await run_arms(options.plan, phases_of(options, rate), slices, progress)


def phases_of(options: FrontierOptions, capacity_per_s: float) -> list[Phase]:
    phases = []
    for percent in options.percents:
        rate = capacity_per_s * percent / 100
        for name, seconds, is_warm_up in (
            (f"settling at {percent} %", options.settle_s, True),
            (f"{percent} %", options.load_s, False),
        ):
            if seconds > 0:
                phases.append(
                    Phase(name=name, kind=AGENTS, requests_per_s=rate, seconds=seconds, is_warm_up=is_warm_up)
                )
    return phases


def read_report(options: FrontierOptions, slices: Slices) -> FrontierReport:
    rate, arm = capacities(options.plan, slices).get(AGENTS.name, (0.0, ""))
    by_arm = {}
    for each in options.plan.capacity_arms:
        found = slices.read(capacity_name(each))
        if found is not None:
            by_arm[each.name] = found["requests_per_s"][AGENTS.name]
    return FrontierReport(
        plan=options.plan,
        capacity_per_s=rate,
        best_unified=arm,
        capacities=by_arm,
        outcomes=read_outcomes(options.plan, slices),
        num_missing=num_missing(options.plan, slices),
    )
