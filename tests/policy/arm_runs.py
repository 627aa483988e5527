"""Runs of arms as they lie on disk, made up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from relevo.bench.arms.arm import arms_named
from relevo.bench.arms.results import ArmOutcome, arm_outcome
from relevo.bench.arms.run import ArmsPlan
from relevo.bench.frontier.report import FrontierReport
from relevo.telemetry.latency import Slo
from relevo.workload.open_loop import Scale

SLO = Slo(ttft_s=2.0, itl_s=0.1)


def plan(arms: str, **changes: Any) -> ArmsPlan:
    made: dict[str, Any] = {
        "model": "fake",
        "arms": arms_named(arms, SLO),
        "capacity_arms": arms_named("unified-2048", SLO),
        "rounds": 1,
        "serve_flags": (),
        "slo": SLO,
        "scale": Scale(),
        "capacity_clients": 2,
        "capacity_s": 1.0,
        "seed": 0,
        "log_dir": Path(),
    }
    return ArmsPlan(**(made | changes))


def request(
    due_s: float, *, ttft_s: float = 0.1, itl_s: tuple[float, ...] = (0.01,), met: bool = True
) -> dict[str, Any]:
    return {
        "due_at_s": due_s,
        "sent_at_s": due_s + 0.001,
        "outcome": "completed",
        "client_ttft_s": ttft_s,
        "tpot_s": 0.01,
        "itl_s": list(itl_s),
        "num_output_tokens": 1 + len(itl_s),
        "met": met,
    }


def phase(name: str, requests: list[dict[str, Any]], seconds: float = 10.0, **changes: Any) -> dict[str, Any]:
    return {
        "name": name,
        "kind": name,
        "seconds": seconds,
        "requests_per_s": 1.0,
        "is_warm_up": False,
        "generator_cpu": 0.1,
        "server_cpu": 1.0,
        "requests": requests,
    } | changes


def run_of(*phases: dict[str, Any], roles: list[Any] | None = None, number: int = 1) -> dict[str, Any]:
    return {"phases": list(phases), "roles": roles or [], "drain_s": 1.0, "round": number}


def outcome_of(name: str, num_met: dict[str, int]) -> ArmOutcome:
    phases = [phase(kind, [request(float(i), met=i < met) for i in range(10)]) for kind, met in num_met.items()]
    return arm_outcome(name, [run_of(*phases)])


def frontier_of(**arms: tuple[float, float]) -> FrontierReport:
    """By arm: TTFT and ITL of all its requests."""
    names = [name.replace("_", "-") for name in arms]
    bodies = {
        name.replace("_", "-"): run_of(
            phase("60 %", [request(i / 100, ttft_s=ttft_s, itl_s=(itl_s,) * 10) for i in range(100)])
        )
        for name, (ttft_s, itl_s) in arms.items()
    }
    return FrontierReport(
        plan=plan(",".join(names)),
        capacity_per_s=1.0,
        best_unified="unified-512",
        capacities={},
        outcomes=[arm_outcome(name, [body]) for name, body in bodies.items()],
        num_missing=0,
    )
