"""`bench overload` as a report. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from relevo.bench.html.figures import Axis, Curve, Figure, Look, Plot
from relevo.bench.html.page import Report
from relevo.bench.overload.report import REJECTIONS, OverloadPhase, OverloadReport, overload_table

Value = Callable[[OverloadReport], float | None]


def overload_page(model: str, url: str, phases: Sequence[OverloadPhase], reports: Sequence[OverloadReport]) -> Report:
    return Report(
        title=f"Overload of {model or 'no model yet'} at {url}",
        sentence=_sentence(reports),
        tables=overload_table(reports),
        figures=[_goodput(reports), _times(reports), *map(_course, phases)],
    )


def _sentence(reports: Sequence[OverloadReport]) -> str:
    if not reports:
        return "No load was applied."
    base = min(reports, key=lambda report: abs(report.multiple - 1.0))
    most = max(reports, key=lambda report: report.multiple)
    share = ""
    if base.goodput_per_s and base is not most:
        share = f", {most.goodput_per_s / base.goodput_per_s:.0%} of that at {base.multiple:g} times"
    served = f"{most.goodput_per_s:.2f} requests a second are served in time{share}"
    rejected = f"{most.num_rejected:,} of {most.num_sent:,} were rejected"
    return f"At {most.multiple:g} times the capacity {served}; {rejected}."


def _goodput(reports: Sequence[OverloadReport]) -> Figure:
    return Plot(
        title="Goodput by load",
        x=Axis(label="times the capacity", from_zero=True),
        y=Axis(label="requests a second", from_zero=True),
        curves=[
            Curve("offered", _by_multiple(reports, lambda report: report.offered_per_s)),
            Curve("served in time", _by_multiple(reports, lambda report: report.goodput_per_s)),
        ],
    )


def _times(reports: Sequence[OverloadReport]) -> Figure:
    told: list[tuple[str, Value]] = [
        ("TTFT p50", lambda report: report.ttft_p50_s),
        ("TTFT p99", lambda report: report.ttft_p99_s),
        ("rejection p50", lambda report: report.rejection_p50_s),
        ("rejection p99", lambda report: report.rejection_p99_s),
    ]
    curves = [Curve(name, [(x, 1e3 * y) for x, y in _by_multiple(reports, value) if y > 0]) for name, value in told]
    return Plot(
        title="Times by load",
        x=Axis(label="times the capacity", from_zero=True),
        y=Axis(label="ms", is_log=True),
        curves=[curve for curve in curves if curve.points],
    )


def _by_multiple(reports: Sequence[OverloadReport], value: Value) -> list[tuple[float, float]]:
    return sorted((report.multiple, found) for report in reports if (found := value(report)) is not None)


def _course(phase: OverloadPhase) -> Figure:
    """Every request by when it was sent: how long its first token took, or its rejection."""
    served, rejected = [], []
    for record in phase.records:
        at_s, ttft_s = (record.sent_at_ns - phase.start_ns) / 1e9, record.times.ttft_s
        if record.error in REJECTIONS and record.failed_at_ns is not None:
            rejected.append((at_s, (record.failed_at_ns - record.sent_at_ns) / 1e6))
        elif ttft_s:
            served.append((at_s, 1e3 * ttft_s))
    curves = [Curve("TTFT", served, Look.DOTS), Curve("rejected after", rejected, Look.DOTS)]
    return Plot(
        title=f"{phase.multiple:g} times the capacity, request by request",
        x=Axis(label="seconds since the overload began", from_zero=True),
        y=Axis(label="ms", is_log=True),
        curves=[Curve(c.name, [(x, y) for x, y in c.points if y > 0], c.look) for c in curves if c.points],
        moments=[(phase.duration_s, "the overload ends")],
        note="The dashed line is where the overload ends.",
    )
