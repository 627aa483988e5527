"""A capacity plan as tables and sentences for a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich.table import Table

from relevo.build.capacity_plan import PEAK, CapacityPlan, Planner, PlanRow
from relevo.build.plan_json import commands, per_million, rows_that_fit
from relevo.core.role import DECODE, PREFILL
from relevo.policy.scaling.search import LEAST_HEADROOM, Found
from relevo.sim.planned_world import held
from relevo.sim.report import SimReport

_MANY_PROMISES = 10  # times a promised TTFT, that a simulation has to last. Arbitrary
_TOO_FEW, _NEVER = "too few", "never"


def plan_table(plan: CapacityPlan, planner: Planner) -> Table:
    """The plan first; figures at the rate that is asked, simulated, without warm-up and drain."""
    table = Table(title="Plans, the best first", title_justify="left")
    table.add_column("plan")
    headings = (
        *("devices", "goodput", "TTFT p50/p90/p99, s", "ITL p50/p90/p99, ms", "busy", "cached"),
        *("per hour", "per 1M tokens (out)", "falls at (screen)"),
    )
    for heading in headings:
        table.add_column(heading, justify="right")
    for row in plan.rows:
        table.add_row(row.candidate.layout.replace(" + ", "\n"), *_cells(row, planner))
        table.add_section()
    return table


def stage_table(plan: CapacityPlan, planner: Planner) -> Table:
    """What each stage of the plan is."""
    table = Table(title="The plan's stages", title_justify="left")
    table.add_column("role")
    for heading in ("workers", "of", "chunk", "rows", "weights a device", "KV cache of all"):
        table.add_column(heading, justify="right")
    context = planner.load.demand.decode_context
    cpu = planner.options.assumed.cpu_cache_bytes
    for stage in plan.rows[0].candidate.stages:
        kind = stage.kind
        tier = " on devices" + (f" + {cpu / 1e9:,.0f} GB CPU each" if cpu and stage.role != DECODE else "")
        table.add_row(
            str(stage.role),
            str(stage.num_workers),
            f"{kind.num_devices} {kind.device.name}, {kind.spread}",
            f"{kind.chunk_tokens:,}" if stage.role != DECODE else "-",
            f"{rows_that_fit(stage, context):,}" if stage.role != PREFILL else "-",
            f"{kind.memory.weight_bytes / 2**30:,.1f} GiB",
            f"{stage.num_pool_tokens / 1e6:,.2f} M tokens{tier}",
        )
    return table


def sentences(plan: CapacityPlan, planner: Planner) -> Iterator[str]:
    """What a reader has to know beside the tables."""
    row, demand = plan.rows[0], planner.load.demand
    if not plan.is_enough:
        yield (
            f"not enough: of {demand.requests_per_s:,.2f} requests a second these devices carry about"
            f" {row.load_limit:.0%} within the promises"
        )
    if plan.is_enough and not row.candidate.is_split:
        yield "do not split: a plan without prefill workers keeps the promises for less"
    for other in plan.rows[1:]:
        yield f"why not {other.candidate.layout}: {other.why_not}"
    yield _headroom(row, planner)
    yield _stage_loads(row, planner)
    if row.with_peak is not None:
        yield f"at {PEAK:g} times the load: {_promise(row.with_peak)}"
    start_s = planner.options.assumed.start_s
    if row.with_death is not None:
        yield f"when a {row.dying} worker dies (back after {start_s:,.0f} s): {_promise(row.with_death)}"
    else:
        yield f"when the only worker dies nothing is served for {start_s:,.0f} s"
    if row.report.arrivals_s < _MANY_PROMISES * planner.options.targets.ttft_s:
        yield (
            f"the simulated piece is {row.report.arrivals_s:,.0f} s long, which is short beside the promise;"
            " give more --simulated-requests"
        )
    index = demand.cache_index(row.candidate.stages[0].num_pool_tokens)
    yield (
        f"cached: simulated {row.report.hit_fraction:.1%} of prompt tokens in a piece of the load;"
        f" by hash chains over all of it {demand.hit_fraction(index):.1%} in a cache of this size"
    )
    if planner.options.assumed.link_bytes_per_s is None and row.candidate.is_split:
        yield "KV is assumed to travel at the speed of the devices' network; measure it and give --link-gb-s"
    validity = plan.validity
    if validity is not None:
        yield validity.band.sentence
        if not validity.is_promised:
            yield "not promised, an estimate only: " + "; ".join(validity.outside)


def _headroom(row: PlanRow, planner: Planner) -> str:
    """At which load it falls, as far as simulations tell; the screen's guess beside it."""
    kept, screen = 1.0 / (1.0 - LEAST_HEADROOM), f"the screen puts the edge at {row.load_limit:.2f}"
    if not row.keeps_margin:
        return f"head-room: falls below {kept:.2f} times the load, simulated; {screen}"
    if row.with_peak is not None and held(row.with_peak, planner.options.targets):
        return f"head-room: holds at {PEAK:g} times the load, simulated; {screen}"
    return f"head-room: falls between {kept:.2f} and {PEAK:g} times the load, simulated; {screen}"


def _stage_loads(row: PlanRow, planner: Planner) -> str:
    """How full each stage is at the rate, and what falls first: a figure of one stage says nothing of the other."""
    demand, screen = planner.load.demand, planner.screen
    stages = screen.outlook(row.candidate, demand).stages
    beyond = screen.outlook(row.candidate, demand.at(1.02 * row.load_limit)).misses(planner.options.targets)
    falls = f"; first to fall: {beyond[0]}" if beyond else ""
    return f"full by the screen: {', '.join(f'{stage.role} {stage.load:.0%}' for stage in stages)}{falls}"


def refused_sentences(found: Found) -> Iterator[str]:
    for refused in found.refused:
        yield f"not built: {refused.name}: {refused.reason}"


def command_text(plan: CapacityPlan, planner: Planner) -> Iterator[str]:
    for engine, lines in commands(plan, planner).items():
        yield f"# {engine}"
        for line in lines:
            if line.note:
                yield f"# {line.note}"
            yield f"# {line.where}"
            yield line.command


def _cells(row: PlanRow, planner: Planner) -> list[str]:
    report, told = row.report, row.report.steady_latencies
    met = report.goodput.steady_met_fraction if report.goodput else None
    per_token, per_output = per_million(row.candidate, planner)
    cost = row.candidate.cost_per_h
    rate = planner.load.demand.requests_per_s
    return (
        [
            str(row.candidate.num_devices),
            "-" if met is None else f"{met * rate:,.2f}/s\n{met:.1%}",
            "\n".join(_quantile(report, "ttft_s", q, 1.0, 2) for q in ("p50", "p90", "p99")),
            "\n".join(_quantile(report, "itl_s", q, 1e3, 1) for q in ("p50", "p90", "p99")),
            "\n".join(f"{pool.role} {pool.busy_fraction:.0%}" for pool in report.pools),
            f"{report.hit_fraction:.1%}",
            "-" if cost is None else f"{cost:,.2f}",
            "-" if per_token is None or per_output is None else f"{per_token:,.3f}\n({per_output:,.2f})",
            f"{row.load_limit:.2f}x",
        ]
        if told
        else []
    )


def _quantile(report: SimReport, name: str, q: str, times: float, digits: int) -> str:
    value = report.steady_latencies[name].quantiles[q]
    if isinstance(value, str):
        return _TOO_FEW if value.startswith("needs") else _NEVER
    return f"{value * times:,.{digits}f}"


def _promise(report: SimReport) -> str:
    first, gap = (_quantile(report, name, "p90", 1.0, 3) for name in ("ttft_s", "itl_s"))
    met = report.goodput.steady_met_fraction if report.goodput else None
    return f"TTFT p90 {first} s, ITL p90 {gap} s, {met or 0.0:.1%} of requests within both"
