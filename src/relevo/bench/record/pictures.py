"""`bench record` as a report: what each topology did at each load. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.table import Table

from relevo.bench.html.figures import Axis, Curve, Figure, Plot
from relevo.bench.html.page import Report
from relevo.bench.serve.report import LoadReport
from relevo.telemetry.latency import Summary, milliseconds


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRun:
    """`offered_per_s`: of an open loop; None: the clients waited for their answers."""

    topology: str
    name: str
    offered_per_s: float | None
    report: LoadReport


def record_page(runs: Sequence[RecordedRun], folder: str) -> Report:
    return Report(
        title=f"Live runs, kept in {folder}",
        sentence=_sentence(runs),
        tables=_table(runs),
        figures=[
            _by_load(runs, "TTFT p90 by load", "ms", _ttft_p90_ms),
            _by_load(runs, "Output by load", "tokens a second", lambda report: report.output_tokens_per_s),
            _by_load(runs, "Completed by load", "requests a second", lambda report: report.requests_per_s),
        ],
    )


def _sentence(runs: Sequence[RecordedRun]) -> str:
    told = [f"{run.topology} {run.report.requests_per_s:.2f}" for run in runs if run.name == "capacity"]
    return f"Requests a second with clients that wait: {', '.join(told)}." if told else "No run came to its end."


def _table(runs: Sequence[RecordedRun]) -> Table:
    table = Table(title="Runs; TTFT and ITL in ms", title_justify="left")
    table.add_column("topology")
    table.add_column("run")
    headings = (
        "offered/s",
        "completed",
        "failed",
        "requests/s",
        "output tokens/s",
        "TTFT p50",
        "p90",
        "ITL p50",
        "p90",
    )
    for heading in headings:
        table.add_column(heading, justify="right")
    for run in runs:
        report = run.report
        table.add_row(
            run.topology,
            run.name,
            "-" if run.offered_per_s is None else f"{run.offered_per_s:.2f}",
            str(report.num_completed),
            str(report.num_failed),
            f"{report.requests_per_s:.2f}",
            f"{report.output_tokens_per_s:,.1f}",
            *_pair(report.latencies.get("client_ttft_s")),
            *_pair(report.latencies.get("itl_s")),
        )
    return table


def _pair(summary: Summary | None) -> tuple[str, str]:
    return ("-", "-") if summary is None else (milliseconds(summary.p50), milliseconds(summary.p90))


def _ttft_p90_ms(report: LoadReport) -> float | None:
    ttft = report.latencies.get("client_ttft_s")
    return None if ttft is None else 1e3 * ttft.p90


def _by_load(
    runs: Sequence[RecordedRun], title: str, label: str, value: Callable[[LoadReport], float | None]
) -> Figure:
    """Of the open loops."""
    points: dict[str, list[tuple[float, float]]] = {}
    for run in runs:
        found = value(run.report)
        if run.offered_per_s is not None and found is not None:
            points.setdefault(run.topology, []).append((run.offered_per_s, found))
    return Plot(
        title=title,
        x=Axis(label="requests offered a second", from_zero=True),
        y=Axis(label=label, from_zero=True),
        curves=[Curve(topology, sorted(of_it)) for topology, of_it in points.items()],
    )
