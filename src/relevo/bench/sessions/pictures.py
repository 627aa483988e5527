"""`bench sessions` as a report. Pure."""

from __future__ import annotations

from relevo.bench.html.figures import Axis, Bar, Bars, cumulative
from relevo.bench.html.page import Report
from relevo.bench.sessions.report import SessionsReport, sessions_table, ttfts_s
from relevo.telemetry.distribution import Samples


def sessions_page(report: SessionsReport, workload: str) -> Report:
    summaries = report.summaries()
    ttfts: dict[str, list[float]] = {}
    for run in report.runs:
        ttfts.setdefault(run.variant, []).extend(ttfts_s(run.records))
    return Report(
        title=f"Sessions by routing variant: {workload}",
        sentence=_sentence(report),
        tables=sessions_table(report),
        figures=[
            Bars(
                title="Prompt tokens found in a cache",
                axis=Axis(label="% of the input tokens"),
                rows=[Bar(s.variant, {"cached": 100 * s.hit_fraction}) for s in summaries],
                unit=" %",
            ),
            cumulative("TTFT", {variant: Samples(values) for variant, values in ttfts.items()}),
            Bars(
                title="Prompt tokens computed, by worker",
                axis=Axis(label="tokens"),
                rows=[Bar(s.variant, dict(sorted(s.prefill_tokens.items()))) for s in summaries if s.prefill_tokens],
            ),
        ],
    )


def _sentence(report: SessionsReport) -> str:
    summaries = report.summaries()
    if not summaries:
        return "No variant was replayed to its end."
    best = max(summaries, key=lambda summary: summary.hit_fraction)
    told = f"{best.variant} found most of the prompts in a cache, {100 * best.hit_fraction:.1f} % of the tokens"
    timed = [summary for summary in summaries if summary.ttft is not None]
    if timed:
        fastest = min(timed, key=lambda summary: summary.ttft.p90 if summary.ttft else 0.0)
        assert fastest.ttft is not None
        told += f"; the lowest TTFT p90 is that of {fastest.variant}, {1e3 * fastest.ttft.p90:,.1f} ms"
    return f"{told}."
