"""`bench engine` as a report. Pure."""

from __future__ import annotations

from relevo.bench.engine.report import PARTS, engine_tables
from relevo.bench.engine.run import Breakdown, EngineReport
from relevo.bench.html.figures import Axis, Bar, Bars, Curve, Figure, Plot, Range, Ranges
from relevo.bench.html.page import Report


def engine_page(report: EngineReport) -> Report:
    facts = report.facts
    where = "" if facts is None else f" of {facts.model}, {' '.join(filter(None, (facts.backend, facts.path)))}"
    return Report(
        title=f"Engine{where}",
        sentence=_sentence(report),
        tables=engine_tables(report),
        figures=[_prefill(report), _decode(report), _bounds(report), _parts(report)],
        notes=report.notes,
    )


def _sentence(report: EngineReport) -> str:
    parts = []
    if report.prefill:
        best = max(report.prefill, key=lambda row: row.tokens_per_s.median)
        parts.append(f"prefill reaches {best.tokens_per_s.median:,.0f} tokens a second (prompt of {best.prompt_len})")
    if report.decode:
        most = max(report.decode, key=lambda row: row.tokens_per_s)
        alone = min(report.decode, key=lambda row: row.step_s.median)
        parts.append(
            f"decode {most.tokens_per_s:,.0f} tokens a second ({most.batch_size} rows at {most.context}); "
            f"its shortest step takes {alone.step_s.median * 1e3:,.2f} ms"
        )
    text = ", ".join(parts) or "nothing was measured"
    return f"{text[0].upper()}{text[1:]}."


def _prefill(report: EngineReport) -> Figure:
    rows = [
        Range(f"prompt of {row.prompt_len}", row.tokens_per_s.median, row.tokens_per_s.least, row.tokens_per_s.most)
        for row in report.prefill
    ]
    return Ranges(
        title="Prefill: median, least and most", axis=Axis(label="tokens a second", from_zero=True), rows=rows
    )


def _decode(report: EngineReport) -> Figure:
    contexts = dict.fromkeys(row.context for row in report.decode)
    curves = [
        Curve(
            f"context {context}",
            sorted((float(r.batch_size), r.tokens_per_s) for r in report.decode if r.context == context),
        )
        for context in contexts
    ]
    return Plot(
        title="Decode by rows of a step",
        x=Axis(label="rows", is_log=True),
        y=Axis(label="tokens a second", from_zero=True),
        curves=curves,
    )


def _bounds(report: EngineReport) -> Figure:
    rows = [
        Bar(f"decode, {row.batch_size} at {row.context}", {"of the bandwidth bound": 100 * row.bound_fraction})
        for row in report.decode
        if row.bound_fraction is not None
    ] + [
        Bar(f"prefill of {row.prompt_len}", {"of the multiply limit": 100 * row.limit_fraction})
        for row in report.prefill
        if row.limit_fraction is not None
    ]
    return Bars(title="Share of this machine's limits", axis=Axis(label="%"), rows=rows, unit=" %")


def _parts(report: EngineReport) -> Figure:
    rows = [(f"prompt of {row.prompt_len}", row.breakdown) for row in report.prefill]
    rows += [(f"decode, {row.batch_size} at {row.context}", row.breakdown) for row in report.decode]
    return Bars(
        title="Where a step goes",
        axis=Axis(label="% of the sum of the medians"),
        rows=[Bar(name, parts) for name, breakdown in rows if (parts := _shares(breakdown))],
        unit=" %",
    )


def _shares(breakdown: Breakdown) -> dict[str, float]:
    """In percent; empty where the runner has no such clocks."""
    seconds = {part: getattr(breakdown, f"{part}_s") for part in PARTS}
    known = {part: max(0.0, value) for part, value in seconds.items() if value is not None}
    total = sum(known.values())
    return {part: 100 * value / total for part, value in known.items()} if len(known) == len(PARTS) and total else {}
