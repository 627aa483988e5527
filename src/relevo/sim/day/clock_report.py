"""From twenty-four hours under a rule to its numbers: who met the targets, and what was paid for that. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Table

from relevo.sim.day.around_the_clock import BURST_HOUR, CORES, DEATH_HOUR, PLANNER, REACTIVE, ClockRun
from relevo.sim.day.report import attained_between
from relevo.telemetry.latency import Slo

GOAL = 0.95  # of requests within targets: what cheaper rules are judged by. As the planner's own


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockReport:
    """`attained`: part of all requests that met both targets; refused ones did not. `core_hours`: of a whole day, as if
    each shortened hour had been one."""

    rule: str
    num_requests: int
    attained: float
    in_burst: float | None
    around_death: float | None  # the hour of it, and the next
    core_hours: float
    num_changes: int
    most_workers: int | None  # that a rule which changes had ordered
    changes: list[dict[str, Any]]
    num_worlds: int
    num_decisions: dict[str, int]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def report_clock(run: ClockRun, hour_s: float, slo: Slo) -> ClockReport:
    def part(first: float, last: float) -> float | None:
        return attained_between(run.requests, run.starts_at_ns, first * hour_s, last * hour_s, slo)

    return ClockReport(
        rule=run.rule,
        num_requests=len(run.requests),
        attained=part(0.0, 25.0) or 0.0,
        in_burst=part(BURST_HOUR, BURST_HOUR + 1),
        around_death=part(DEATH_HOUR, DEATH_HOUR + 1.5),
        core_hours=run.worker_s * CORES / hour_s,
        num_changes=len(run.changes),
        most_workers=max((change.num_workers for change in run.changes), default=None),
        changes=[asdict(change) for change in run.changes],
        num_worlds=run.num_worlds,
        num_decisions=dict(run.num_decisions),
    )


def clock_table(reports: Sequence[ClockReport]) -> Table:
    table = Table(title="Twenty-four hours: requests that met both targets, and core-hours that were paid for")
    table.add_column("rule")
    for name in ("day", "burst", "around the death", "core-hours", "per 1,000 met", "changes", "most workers"):
        table.add_column(name, justify="right")
    for report in reports:
        num_met = report.attained * report.num_requests
        table.add_row(
            report.rule,
            *(
                "-" if part is None else f"{part:.1%}"
                for part in (report.attained, report.in_burst, report.around_death)
            ),
            f"{report.core_hours:,.0f}",
            f"{1e3 * report.core_hours / num_met:,.1f}" if num_met else "-",
            str(report.num_changes),
            "-" if report.most_workers is None else str(report.most_workers),
        )
    return table


def clock_sentence(reports: Sequence[ClockReport]) -> str:
    """The planner against the usual autoscaler and the cheapest fixed rule that keeps the goal."""
    by_rule = {report.rule: report for report in reports}
    fixed = [report for report in reports if report.rule not in (PLANNER, REACTIVE)]
    if PLANNER not in by_rule or REACTIVE not in by_rule or not fixed:
        return "Not every rule was run."
    good = [report for report in fixed if report.attained >= GOAL]
    best = min(good, key=lambda each: each.core_hours) if good else max(fixed, key=lambda each: each.attained)
    what = f"the cheapest fixed one that keeps {GOAL:.0%}" if good else f"the best fixed one (none keeps {GOAL:.0%})"
    return "; ".join(
        f"{name}: {each.attained:.1%} for {each.core_hours:,.0f} core-hours"
        for name, each in (
            ("the planner", by_rule[PLANNER]),
            ("the reactive scaler", by_rule[REACTIVE]),
            (f"{what}, {best.rule}", best),
        )
    )
