"""`bench workloads` as a report. Pure."""

from __future__ import annotations

from relevo.bench.arms.arm import AUTO
from relevo.bench.html.figures import Axis, Bar, Bars, Curve, Figure, Look, Plot, cumulative
from relevo.bench.html.page import Report
from relevo.bench.workloads.report import WorkloadsReport, workloads_tables
from relevo.telemetry.distribution import Samples


def workloads_page(report: WorkloadsReport) -> Report:
    figures: list[Figure] = [
        Bars(
            title="Requests within both targets, by workload",
            axis=Axis(label="requests a second of the sequence"),
            rows=[
                Bar(outcome.name, {phase.name: phase.num_met / total for phase in outcome.phases})
                for outcome in report.outcomes
                if (total := sum(each.seconds * each.rounds for each in outcome.phases))
            ],
        ),
        _course(report),
    ]
    for name in report.phase_names:
        phases = [(outcome.name, phase) for outcome in report.outcomes if (phase := outcome.phase(name)) is not None]
        ttfts = {arm: Samples([a.ttft_s for a in phase.answers if a.ttft_s is not None]) for arm, phase in phases}
        figures.append(cumulative(f"TTFT, {name}", ttfts))
        figures.append(cumulative(f"ITL, {name}", {arm: Samples(phase.gaps_s) for arm, phase in phases}))
    return Report(
        title="Five workloads in sequence, by mode",
        sentence=workloads_sentence(report),
        tables=workloads_tables(report),
        figures=figures,
    )


def workloads_sentence(report: WorkloadsReport) -> str:
    verdicts = report.verdicts
    if not verdicts:
        return f"Too little was measured to compare {AUTO} with fixed modes."
    told = "; ".join(f"{v.what} {v.ratio or 0.0:.2f}x of {v.against}" for v in verdicts if v.is_met is False)
    num_met = sum(verdict.is_met is True for verdict in verdicts)
    told = f"{AUTO} meets {num_met} of {len(verdicts)} goals" + (f"; missed: {told}." if told else ".")
    partial = f" {report.num_missing} parts are not measured yet." if report.num_missing else ""
    return told + partial


def _course(report: WorkloadsReport) -> Plot:
    """The share of requests in time, in parts of a phase, over the sequence."""
    curves = []
    starts: list[tuple[float, str]] = []
    for outcome in report.outcomes:
        points, start_s = [], 0.0
        for phase in outcome.phases:
            parts = 6
            for part in range(parts):
                low, high = phase.seconds * part / parts, phase.seconds * (part + 1) / parts
                inside = [answer.is_met for answer in phase.answers if low <= answer.due_s < high]
                if inside:
                    points.append((start_s + (low + high) / 2, 100 * sum(inside) / len(inside)))
            if outcome is report.outcomes[0]:
                starts.append((start_s, phase.name))
            start_s += phase.seconds
        curves.append(Curve(outcome.name, points, Look.LINE))
    curves = [curve for curve in curves if curve.points]
    return Plot(
        title="Requests within both targets over time",
        x=Axis(label="seconds", from_zero=True),
        y=Axis(label="%", from_zero=True),
        curves=curves,
        moments=starts if curves else [],
        note="Dashed lines: a phase begins.",
    )
