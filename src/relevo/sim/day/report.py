"""From the runs of a day to its numbers: who met the targets in which hour, how often roles changed, how soon. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from typing import Any

from rich.table import Table

from relevo.bench.html.figures import Axis, Curve, Plot
from relevo.bench.html.page import Report
from relevo.sim.day.traffic import Hour
from relevo.sim.day.two_workers import PLANNER, THRESHOLD, DayRun
from relevo.sim.results import RequestOutcome, RequestResult
from relevo.telemetry.latency import Slo

_STEP_S = 15.0  # of the course of a day


@dataclass(frozen=True, slots=True, kw_only=True)
class DayReport:
    """`attained`: part of all requests that met both targets; refused ones did not."""

    rule: str
    num_requests: int
    attained: float
    by_hour: dict[str, float | None]
    num_changes: int
    num_returns: int  # of these, back to the mode before the last within an hour
    adapted_s: dict[str, float]  # from the beginning of an hour to the first change in it
    changes: list[dict[str, Any]]
    course: list[tuple[float, float]]  # seconds, attained of the requests that came then
    num_worlds: int
    num_decisions: dict[str, int]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def report_day(run: DayRun, hours: Sequence[Hour], slo: Slo) -> DayReport:
    arrived = _judged(run.requests, run.starts_at_ns, slo)
    by_hour, adapted_s, start_s = dict[str, float | None](), dict[str, float](), 0.0
    for hour in hours:
        end_s = start_s + hour.seconds
        by_hour[hour.name] = _part([met for at_s, met in arrived if start_s <= at_s < end_s])
        first_s = next((change.at_s for change in run.changes if start_s <= change.at_s < end_s), None)
        if first_s is not None:
            adapted_s[hour.name] = first_s - start_s
        start_s = end_s
    return DayReport(
        rule=run.rule,
        num_requests=len(arrived),
        attained=_part([met for _, met in arrived]) or 0.0,
        by_hour=by_hour,
        num_changes=len(run.changes),
        num_returns=_num_returns(run, hours),
        adapted_s=adapted_s,
        changes=[asdict(change) for change in run.changes],
        course=_course(arrived, start_s),
        num_worlds=run.num_worlds,
        num_decisions=dict(run.num_decisions),
    )


def _num_returns(run: DayRun, hours: Sequence[Hour]) -> int:
    """An hour's traffic is of one kind, so a change that is taken back in it was none to make."""
    ends_s = list(accumulate(hour.seconds for hour in hours))
    hour_of = [bisect_right(ends_s, change.at_s) for change in run.changes]
    modes = [run.start_mode, *(change.mode for change in run.changes)]
    return sum(
        modes[place + 1] == modes[place - 1] and hour_of[place] == hour_of[place - 1]
        for place in range(1, len(hour_of))
    )


def day_table(reports: Sequence[DayReport]) -> Table:
    table = Table(title="Requests that met both targets, by rule and hour")
    table.add_column("rule")
    for name in ("day", *(reports[0].by_hour if reports else ())):
        table.add_column(name, justify="right")
    table.add_column("changes", justify="right")
    table.add_column("back again", justify="right")
    table.add_column("first change, s after an hour began")
    for report in reports:
        adapted = ", ".join(f"{name} {seconds:.0f}" for name, seconds in report.adapted_s.items())
        parts = ("-" if part is None else f"{part:.1%}" for part in report.by_hour.values())
        table.add_row(
            report.rule, f"{report.attained:.1%}", *parts, str(report.num_changes), str(report.num_returns), adapted
        )
    return table


def day_sentence(reports: Sequence[DayReport]) -> str:
    """The planner against the best mode that never changes, and against the threshold."""
    by_rule = {report.rule: report for report in reports}
    planner, threshold = by_rule.get(PLANNER), by_rule.get(THRESHOLD)
    static = [report for report in reports if report.rule not in (PLANNER, THRESHOLD)]
    if planner is None or threshold is None or not static:
        return "Not every rule was run."
    best = max(static, key=lambda report: report.attained)
    return (
        f"The planner met the targets for {planner.attained:.1%} of {planner.num_requests:,} requests, the best mode "
        f"that never changes ({best.rule}) for {best.attained:.1%}, a threshold for {threshold.attained:.1%}."
    )


def day_page(reports: Sequence[DayReport], source: str) -> Report:
    return Report(
        title=f"A day of {source}",
        sentence=day_sentence(reports),
        tables=day_table(reports),
        figures=[
            Plot(
                title="Requests that met both targets, over the day",
                x=Axis(label="s", from_zero=True),
                y=Axis(label="%", from_zero=True),
                curves=[Curve(each.rule, [(at_s, 100 * part) for at_s, part in each.course]) for each in reports],
            )
        ],
    )


def attained_between(
    requests: Sequence[RequestResult], starts_at_ns: int, first_s: float, last_s: float, slo: Slo
) -> float | None:
    """Part of the requests that came in these seconds; None if none came."""
    return _part([met for at_s, met in _judged(requests, starts_at_ns, slo) if first_s <= at_s < last_s])


def _judged(requests: Sequence[RequestResult], starts_at_ns: int, slo: Slo) -> list[tuple[float, bool]]:
    """When each came, in seconds, and whether it met the targets."""
    return [((each.arrived_at_ns - starts_at_ns) / 1e9, _is_met(each, slo)) for each in requests]


def _is_met(result: RequestResult, slo: Slo) -> bool:
    return result.outcome is RequestOutcome.FINISHED and slo.is_met(result.times, result.times.tpot_s)


def _part(met: Sequence[bool]) -> float | None:
    return sum(met) / len(met) if met else None


def _course(arrived: Sequence[tuple[float, bool]], end_s: float) -> list[tuple[float, float]]:
    points = []
    for place in range(int(end_s / _STEP_S)):
        part = _part([met for at_s, met in arrived if place <= at_s / _STEP_S < place + 1])
        if part is not None:
            points.append((place * _STEP_S, part))
    return points
