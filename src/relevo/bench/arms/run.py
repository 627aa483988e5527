"""Runs every arm in turns over the same phases, at rates that come from what a unified server sustains.

What has ended is on disk; a command that is cut short, or has no more time, is repeated and does the rest.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from relevo.bench.arms.arm import Arm, in_turns
from relevo.bench.arms.phases import Phase, run_phases, sustained_per_s
from relevo.bench.arms.served import served
from relevo.bench.arms.slices import Slices
from relevo.core.errors import SettingsError
from relevo.telemetry.latency import Slo
from relevo.telemetry.progress import Progress
from relevo.workload.open_loop import Scale
from relevo.workload.phases import Phase as Traffic


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmsPlan:
    """`capacity_arms`: unified servers, whose best decides what is sustained."""

    model: str | None
    arms: Sequence[Arm]
    capacity_arms: Sequence[Arm]
    rounds: int
    serve_flags: tuple[str, ...]  # for every server
    slo: Slo
    scale: Scale
    capacity_clients: int
    capacity_s: float  # of each kind of traffic
    seed: int
    log_dir: Path

    def check(self) -> None:
        """Raises SettingsError before anything is started."""
        if self.rounds < 1:
            raise SettingsError(f"--rounds must be at least 1, got {self.rounds}")
        if not self.capacity_arms or not all(arm.is_unified for arm in self.capacity_arms):
            raise SettingsError("--capacity-arms are unified servers, such as unified-2048; loads are shares of theirs")
        for name, scale in (("prompt", self.scale.prompts), ("answer", self.scale.answers)):
            if not 0.0 < scale <= 100.0:
                raise SettingsError(f"--{name}-scale must be above 0 and at most 100, got {scale:g}")
        if not self.slo.ttft_s or not self.slo.itl_s:
            raise SettingsError("both targets must be above 0; give --slo-ttft-ms and --slo-itl-ms")

    def to_json(self) -> dict[str, Any]:
        """What results of one folder have in common."""
        return {
            "model": self.model,
            "arms": {arm.name: arm.words for arm in self.arms},
            "capacity_arms": [arm.name for arm in self.capacity_arms],
            "rounds": self.rounds,
            "serve_flags": list(self.serve_flags),
            "slo_ttft_s": self.slo.ttft_s,
            "slo_itl_s": self.slo.itl_s,
            "prompt_scale": self.scale.prompts,
            "answer_scale": self.scale.answers,
            "capacity_clients": self.capacity_clients,
            "capacity_s": self.capacity_s,
            "seed": self.seed,
        }


def capacity_name(arm: Arm) -> str:
    return f"capacity-{arm.name}"


def slice_name(number: int, arm: Arm) -> str:
    return f"round-{number}-{arm.name}"


async def measure_capacities(plan: ArmsPlan, kinds: Sequence[Traffic], slices: Slices, progress: Progress) -> bool:
    """Whether all are there; False: there was no time left."""
    for arm in plan.capacity_arms:
        name = capacity_name(arm)
        if slices.read(name) is not None:
            continue
        if not slices.has_time_for(len(kinds) * plan.capacity_s, "capacity"):
            return False
        began_s = time.monotonic()
        progress.begin(f"{arm.name}: starting")
        plan.log_dir.mkdir(parents=True, exist_ok=True)
        async with served(arm, plan.model, plan.serve_flags, plan.log_dir / f"{name}.log") as server:
            found = {
                kind.name: await sustained_per_s(
                    server,
                    kind,
                    plan.capacity_clients,
                    plan.capacity_s,
                    plan.seed,
                    plan.scale,
                    progress,
                    f"what {arm.name} sustains of {kind.name}",
                )
                for kind in kinds
            }
        told = ", ".join(f"{kind} {rate:.2f}/s" for kind, rate in found.items())
        progress.say(f"{arm.name} sustains {told}")
        slices.write(name, {"requests_per_s": found}, kind="capacity", took_s=time.monotonic() - began_s)
    return True


def capacities(plan: ArmsPlan, slices: Slices) -> dict[str, tuple[float, str]]:
    """Requests a second of each kind, and the arm that sustained them, as far as measured."""
    best: dict[str, tuple[float, str]] = {}
    for arm in plan.capacity_arms:
        rates: Mapping[str, float] = (slices.read(capacity_name(arm)) or {}).get("requests_per_s", {})
        for kind, rate in rates.items():
            best[kind] = max(best.get(kind, (0.0, "")), (rate, arm.name))
    return best


async def run_arms(plan: ArmsPlan, phases: Sequence[Phase], slices: Slices, progress: Progress) -> bool:
    """Whether all are there; False: there was no time left."""
    load_s = sum(phase.seconds for phase in phases)
    turns = in_turns(plan.arms, plan.rounds)
    for place, (number, arm) in enumerate(turns, start=1):
        name = slice_name(number, arm)
        if slices.read(name) is not None:
            continue
        if not slices.has_time_for(load_s, "arm"):
            return False
        began_s = time.monotonic()
        progress.begin(f"{place} of {len(turns)}: {arm.name}, starting")
        plan.log_dir.mkdir(parents=True, exist_ok=True)
        async with served(arm, plan.model, plan.serve_flags, plan.log_dir / f"{name}.log") as server:
            told = f"{place} of {len(turns)}: {arm.name}"
            run = await run_phases(server, phases, plan.seed + number, plan.scale, progress, told)
        body = {"arm": arm.name, "round": number, **run.to_json(plan.slo)}
        slices.write(name, body, kind="arm", took_s=time.monotonic() - began_s)
    return True


def num_missing(plan: ArmsPlan, slices: Slices) -> int:
    """Slices that are not there yet."""
    names = [capacity_name(arm) for arm in plan.capacity_arms]
    names += [slice_name(number, arm) for number, arm in in_turns(plan.arms, plan.rounds)]
    return sum(slices.read(name) is None for name in names)
