"""Load reports as tables for a terminal. Milliseconds for latencies, because that is what people compare."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table

from relevo.bench.serve.report import LoadReport
from relevo.telemetry.latency import LATENCY_LABELS, Summary, milliseconds


def load_tables(report: LoadReport) -> RenderableType:
    """Latencies, then rates and counts."""
    latencies = Table(title="Latency of completed requests, ms", title_justify="left")
    latencies.add_column("")
    for heading in ("count", "mean", "p50", "p90", "p95", "p99", "max"):
        latencies.add_column(heading, justify="right")
    labels = {"client_ttft_s": "TTFT (client)"} | {k: v for k, v in LATENCY_LABELS.items() if k != "ttft_s"}
    for name, label in labels.items():
        latencies.add_row(label, *_summary_cells(report.latencies.get(name)))
    return Group(latencies, _counts_table(report))


def _summary_cells(summary: Summary | None) -> list[str]:
    if summary is None:
        return ["0", *["-"] * 6]
    values = (summary.mean, summary.p50, summary.p90, summary.p95, summary.p99, summary.max)
    return [str(summary.count), *(milliseconds(value) for value in values)]


def _counts_table(report: LoadReport) -> Table:
    table = Table(show_header=False)
    table.add_column("")
    table.add_column("", justify="right")
    errors = ", ".join(f"{kind}: {count}" for kind, count in sorted(report.errors.items()))
    rows = [
        ("duration", f"{report.duration_s:.2f} s"),
        ("requests completed / failed / unfinished", _triple(report)),
        ("errors", errors or "none"),
        ("requests per second", f"{report.requests_per_s:.2f}"),
        ("input tokens per second", f"{report.input_tokens_per_s:,.1f}"),
        ("output tokens per second", f"{report.output_tokens_per_s:,.1f}"),
        ("input / cached / output tokens", _tokens(report)),
    ]
    if report.goodput_per_s is not None:
        met = f"{report.goodput_per_s:.2f} requests/s ({100 * (report.slo_met_fraction or 0.0):.1f} % of all sent)"
        rows.append(("goodput", met))
    for label, value in rows:
        table.add_row(label, value)
    return table


def _triple(report: LoadReport) -> str:
    return f"{report.num_completed} / {report.num_failed} / {report.num_unfinished}"


def _tokens(report: LoadReport) -> str:
    return f"{report.num_input_tokens:,} / {report.num_cached_tokens:,} / {report.num_output_tokens:,}"
