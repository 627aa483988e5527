"""`bench peers` as a report: each of ours over the best peer, with the spread of our runs. Pure."""

from __future__ import annotations

from statistics import median

from relevo.bench.html.figures import Axis, Range, Ranges
from relevo.bench.html.page import Report
from relevo.bench.peers.report import OURS, PeersReport, is_ours, peers_table


def peers_page(report: PeersReport) -> Report:
    names = [result.name for result in report.results]
    return Report(
        title=f"{OURS} beside {', '.join(name for name in names if not is_ours(name)) or 'nothing'}",
        sentence=_sentence(report),
        tables=peers_table(report),
        figures=[
            *(_ratios(report, name) for name in names if is_ours(name)),
            *(_values(report, number) for number in range(len(report.comparisons()))),
        ],
        notes=report.notes(),
    )


def _sentence(report: PeersReport) -> str:
    rows = [row for row in report.comparisons() if row.ratio is not None]
    better = sum((row.ratio or 0.0) < 1 if row.metric.lower_is_better else (row.ratio or 0.0) > 1 for row in rows)
    return f"{OURS} is better than the best peer in {better} of {len(rows)} figures that both have."


def _ratios(report: PeersReport, name: str) -> Ranges:
    """The least and the most of our runs, over the best peer's median."""
    rows = []
    for row in report.comparisons():
        if row.best_peer is None or name not in row.ratios:
            continue
        base, values = row.medians[row.best_peer], report.result(name).values[row.metric]
        if min(values) > 0:
            better = "lower is better" if row.metric.lower_is_better else "higher is better"
            ratio = Range(f"{row.metric.name} ({better})", row.ratios[name], min(values) / base, max(values) / base)
            rows.append(ratio)
    axis = Axis(label=f"{name} / the best peer", is_log=True)
    return Ranges(title=f"{name} / the best peer", axis=axis, rows=rows, reference=1.0)


def _values(report: PeersReport, number: int) -> Ranges:
    metric = report.comparisons()[number].metric
    rows = [
        Range(result.name, median(values), min(values), max(values))
        for result in report.results
        if (values := result.values.get(metric))
    ]
    better = "lower is better" if metric.lower_is_better else "higher is better"
    return Ranges(title=metric.name, axis=Axis(label=better, from_zero=True), rows=rows)
