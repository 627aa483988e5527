"""Reports of simulated configurations as tables for a terminal, one beside the other. Latencies in milliseconds."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.console import Group, RenderableType
from rich.table import Table

from relevo.sim.report import Pool, SimReport
from relevo.sim.workload_facts import WorkloadFacts
from relevo.telemetry.distribution import Distribution
from relevo.telemetry.latency import LATENCY_LABELS, milliseconds

_GB, _M = 1e9, 1e6
TOO_FEW = "too few"


def workload_table(facts: WorkloadFacts) -> Table:
    """What is sent, and what was changed in it."""
    table = Table(title=f"Workload: {facts.source}", title_justify="left", show_header=False)
    table.add_column("")
    table.add_column("")
    sessions = f" in {facts.num_sessions:,} sessions" if facts.num_sessions else ""
    table.add_row("requests", f"{facts.num_requests:,}{sessions}")
    table.add_row("arrivals per second", "all at once" if facts.rate_per_s is None else f"{facts.rate_per_s:,.3f}")
    table.add_row("prompt / output tokens, mean", f"{facts.mean_prompt_tokens:,.0f} / {facts.mean_output_tokens:,.0f}")
    table.add_row("longest request", f"{facts.longest_tokens:,} tokens")
    if facts.hash_block_size is not None:
        offered = f"{facts.offered_hit_fraction:.1%} of prompt tokens (blocks of {facts.hash_block_size})"
        table.add_row("repeated beginnings", offered)
    for sentence in facts.notes:
        table.add_row("note", sentence)
    return table


def report_tables(reports: Sequence[SimReport]) -> RenderableType:
    """Latencies, what was achieved, and what each pool and link did."""
    tables: list[RenderableType] = [latency_table(reports), _outcome_table(reports), _pool_table(reports)]
    if any(report.links for report in reports):
        tables.append(_link_table(reports))
    return Group(*tables)


def latency_table(reports: Sequence[SimReport]) -> Table:
    """Two rows for each configuration and latency: over all arrivals, and without warm-up and drain."""
    table = Table(title="Latency over all arrivals, ms; below it without warm-up and drain", title_justify="left")
    for heading in ("", ""):
        table.add_column(heading)
    for heading in ("samples", "missing", "mean", "p50", "p90", "p95", "p99", "max"):
        table.add_column(heading, justify="right")
    for report in reports:
        for key, label in LATENCY_LABELS.items():
            table.add_row(report.label if key == "ttft_s" else "", label, *_cells(report.latencies[key]))
            table.add_row("", "  steady", *_cells(report.steady_latencies[key]))
        table.add_section()
    return table


def _cells(told: Distribution) -> list[str]:
    quantiles = (_quantile(value) for value in told.quantiles.values())
    counts = (f"{told.count:,}", f"{told.num_missing:,}")
    return [*counts, milliseconds(told.mean), *quantiles, milliseconds(told.max)]


def _quantile(value: float | str) -> str:
    if not isinstance(value, str):
        return milliseconds(value)
    return TOO_FEW if value.startswith("needs") else "never"


def _outcome_table(reports: Sequence[SimReport]) -> Table:
    table = Table(title="Outcome", title_justify="left")
    table.add_column("")
    for report in reports:
        table.add_column(report.label, justify="right")
    for label, cell in _OUTCOME_ROWS:
        cells = [cell(report) for report in reports]
        if any(cells):
            table.add_row(label, *cells)
    return table


def _outcomes(report: SimReport) -> str:
    parts = [
        f"{report.outcomes.get(kind, 0):,}" for kind in ("finished", "rejected", "failed", "aborted", "unfinished")
    ]
    return " / ".join(parts)


def _phases(report: SimReport) -> str:
    phases = report.phases
    return f"{phases.num_warm_up:,} / {phases.num_steady:,} / {phases.num_drain:,}"


def _goodput(report: SimReport) -> str:
    goodput = report.goodput
    if goodput is None:
        return ""
    steady = "" if goodput.steady_met_fraction is None else f" ({goodput.steady_met_fraction:.1%})"
    return f"{goodput.per_s:.2f}/s, {goodput.met_fraction:.1%}{steady}"


def _cost(report: SimReport) -> str:
    cost = report.cost
    if cost is None:
        return ""
    per_million, per_thousand = cost.per_million_output_tokens, cost.per_thousand_finished
    return f"{_money(cost.per_h)} / {_money(per_million)} / {_money(per_thousand)}"


def _money(amount: float | None) -> str:
    return "-" if amount is None else f"{amount:,.2f}"


_OUTCOME_ROWS: tuple[tuple[str, Callable[[SimReport], str]], ...] = (
    ("devices", lambda report: f"{report.num_devices:,}"),
    ("duration (arrivals until)", lambda report: f"{report.duration_s:,.1f} s ({report.arrivals_s:,.1f} s)"),
    ("finished / rejected / failed / aborted / unfinished", _outcomes),
    ("arrived in warm-up / steady / drain", _phases),
    ("finished requests per second", lambda report: f"{report.requests_per_s:,.2f}"),
    ("prompt tokens per second", lambda report: f"{report.prompt_tokens_per_s:,.1f}"),
    (
        "output tokens per second (steady)",
        lambda report: f"{report.output_tokens_per_s:,.1f} ({report.steady_output_tokens_per_s:,.1f})",
    ),
    ("output tokens per second and device", lambda report: f"{report.output_tokens_per_s_and_device:,.2f}"),
    ("prompt tokens found in a cache", lambda report: f"{report.hit_fraction:.1%}"),
    ("goodput: per second, share of arrivals (steady)", _goodput),
    ("handoffs; KV moved", lambda report: f"{report.num_handoffs:,}; {report.kv_transfer_bytes / _GB:,.1f} GB"),
    ("preemptions / restarts", lambda report: f"{report.num_preemptions:,} / {report.num_restarts:,}"),
    ("cost per hour / million output tokens / 1,000 finished", _cost),
)


def _pool_table(reports: Sequence[SimReport]) -> Table:
    table = Table(title="Use of the workers over the whole run", title_justify="left")
    table.add_column("")
    table.add_column("role")
    headings = (
        "workers",
        "devices",
        "busy",
        "of products",
        "of bandwidth",
        "KV peak",
        "steps",
        "prompt tokens",
        "output",
    )
    for heading in headings:
        table.add_column(heading, justify="right")
    for report in reports:
        for index, pool in enumerate(report.pools):
            table.add_row("" if index else report.label, pool.role, *_pool_cells(pool))
        table.add_section()
    return table


def _pool_cells(pool: Pool) -> list[str]:
    return [
        str(pool.num_workers),
        str(pool.num_devices),
        _percent(pool.busy_fraction),
        _percent(pool.products_fraction),
        _percent(pool.bandwidth_fraction),
        _percent(pool.kv_peak_fraction),
        f"{pool.num_steps:,}",
        f"{pool.num_prefill_tokens / _M:,.2f} M",
        f"{pool.num_output_tokens / _M:,.2f} M",
    ]


def _percent(fraction: float | None) -> str:
    return "-" if fraction is None else f"{100 * fraction:.1f} %"


def _link_table(reports: Sequence[SimReport]) -> Table:
    table = Table(title="Links", title_justify="left")
    table.add_column("")
    table.add_column("link")
    for heading in ("moved", "busy"):
        table.add_column(heading, justify="right")
    for report in reports:
        busiest = sorted(report.links, key=lambda link: -link.num_bytes)[:NUM_LINKS]
        for index, link in enumerate(busiest):
            cells = (link.name, f"{link.num_bytes / _GB:,.1f} GB", _percent(link.busy_fraction))
            table.add_row("" if index else report.label, *cells)
        table.add_section()
    return table


NUM_LINKS = 4  # the busiest ones are printed, all are in the JSON; arbitrary
