"""A capacity plan as JSON and as commands: plain values, the same for the same question."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from relevo.build.capacity_plan import CapacityPlan, Planner, PlanRow
from relevo.policy.scaling.candidates import Candidate, Stage
from relevo.policy.scaling.command_lines import (
    CommandLine,
    Serving,
    relevo_commands,
    sglang_commands,
    vllm_commands,
)
from relevo.policy.scaling.search import Infeasible
from relevo.sim.report import SimReport

_S_PER_H, _MILLION = 3600.0, 1e6


def plan_json(plan: CapacityPlan, planner: Planner) -> dict[str, Any]:
    """Keys end in their unit. Documented in docs/guides/plan.md."""
    told = {
        "workload": asdict(planner.load.facts),
        "demand": {
            "requests_per_s": planner.load.demand.requests_per_s,
            "mean_prompt_tokens": planner.load.demand.mean_prompt_tokens,
            "mean_output_tokens": planner.load.demand.mean_output_tokens,
            "longest_tokens": planner.load.demand.longest_tokens,
            "burstiness": planner.load.demand.burstiness,
        },
        "targets": asdict(planner.options.targets),
        "assumed": asdict(planner.options.assumed),
        "engine": planner.options.engine,
        "engine_version": planner.options.engine_version,
    }
    if isinstance(plan.found, Infeasible):
        return {**told, "infeasible": asdict(plan.found), "plans": []}
    return {
        **told,
        "infeasible": None,
        "is_enough": plan.is_enough,
        "is_promised": plan.validity is not None and plan.validity.is_promised,
        "not_promised_because": list(plan.validity.outside) if plan.validity else [],
        "error_band": plan.validity.band.sentence if plan.validity else None,
        "refused": [{"worker": refused.name, "reason": refused.reason} for refused in plan.found.refused],
        "plans": [_row_json(row, planner) for row in plan.rows],
        "commands": {name: [asdict(line) for line in lines] for name, lines in commands(plan, planner).items()},
    }


def commands(plan: CapacityPlan, planner: Planner) -> dict[str, list[CommandLine]]:
    """Of the first plan, by engine."""
    candidate = plan.rows[0].candidate
    context = planner.load.demand.decode_context
    serving = Serving(
        model=planner.options.model,
        max_model_len=planner.load.demand.longest_tokens + 1,
        block_size=planner.load.block_size,
        utilization=planner.options.assumed.utilization,
        rows={stage.role: rows_that_fit(stage, context) for stage in candidate.stages},
    )
    return {
        "relevo": relevo_commands(candidate, serving),
        "vllm": vllm_commands(candidate, serving),
        "sglang": sglang_commands(candidate, serving),
    }


def rows_that_fit(stage: Stage, context: float) -> int:
    """Requests that decode at a time on a worker."""
    return max(1, min(stage.kind.max_rows, int(stage.kind.memory.num_pool_tokens / context)))


def per_million(candidate: Candidate, planner: Planner) -> tuple[float | None, float | None]:
    """What a million tokens cost, of prompts and answers together and of answers alone, at the rate that is asked."""
    demand, cost = planner.load.demand, candidate.cost_per_h
    if cost is None:
        return None, None
    output_per_h = demand.requests_per_s * demand.mean_output_tokens * _S_PER_H
    all_per_h = output_per_h + demand.requests_per_s * demand.mean_prompt_tokens * _S_PER_H
    return cost / all_per_h * _MILLION, cost / output_per_h * _MILLION


def _row_json(row: PlanRow, planner: Planner) -> dict[str, Any]:
    per_token, per_output = per_million(row.candidate, planner)
    return {
        "plan": row.candidate.label,
        "layout": row.candidate.layout,
        "is_split": row.candidate.is_split,
        "num_devices": row.candidate.num_devices,
        "stages": [_stage_json(stage, planner) for stage in row.candidate.stages],
        "cost_per_h": row.candidate.cost_per_h,
        "cost_per_million_tokens": per_token,
        "cost_per_million_output_tokens": per_output,
        "holds": row.holds,
        "keeps_margin": row.keeps_margin,
        "screened_load_limit": row.load_limit,
        "simulated": figures(row.report),
        "with_1.5_times_the_load": figures(row.with_peak) if row.with_peak else None,
        "when_one_dies": {"role": str(row.dying), **figures(row.with_death)} if row.with_death else None,
        "why_not": row.why_not,
    }


def _stage_json(stage: Stage, planner: Planner) -> dict[str, Any]:
    kind, spread = stage.kind, stage.kind.parallelism
    return {
        "role": str(stage.role),
        "num_workers": stage.num_workers,
        "device": kind.device.name,
        "devices_per_worker": kind.num_devices,
        "tensor": spread.tensor,
        "pipeline": spread.pipeline,
        "attention_data": spread.attention_data,
        "expert": spread.expert,
        "chunk_tokens": kind.chunk_tokens,
        "rows": rows_that_fit(stage, planner.load.demand.decode_context),
        "cache_tokens": stage.num_pool_tokens,
        "cache_tiers": ["device", "cpu"] if planner.options.assumed.cpu_cache_bytes else ["device"],
        "weight_bytes_per_device": kind.memory.weight_bytes,
    }


def figures(report: SimReport) -> dict[str, Any]:
    """Of the steady phase."""
    told = report.steady_latencies
    return {
        **{f"{name}_{q}": told[name].value(q) for name in ("ttft_s", "itl_s") for q in ("p50", "p90", "p99")},
        "met_fraction": report.goodput.steady_met_fraction if report.goodput else None,
        "hit_fraction": report.hit_fraction,
        "busy_fractions": {pool.role: pool.busy_fraction for pool in report.pools},
        "num_requests": report.phases.num_steady,
        "outcomes": report.outcomes,
    }
