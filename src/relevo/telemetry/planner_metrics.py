"""Rows of `metric_table` that a model's planner tells."""

from __future__ import annotations

from collections.abc import Iterable

from relevo.policy.scaling.role_planner import PlanVerdict
from relevo.policy.scaling.scale_orders import CommandOutcome
from relevo.policy.scaling.worker_count import CountVerdict
from relevo.telemetry.metric import Kind, Metric, Origin
from relevo.telemetry.worker_metrics import MODEL


def _planner_count(name: str, help_text: str, label: str, values: Iterable[str]) -> Metric:
    labels = (*MODEL, label)
    return Metric(
        name=name,
        kind=Kind.COUNTER,
        origin=Origin.REQUESTS,
        labels=labels,
        help=help_text,
        label_values=tuple(values),
    )


PLANNER_METRICS: tuple[Metric, ...] = (
    _planner_count(
        "relevo:planner_decisions_total",
        "Decisions of the planner, one per tick; see guides/planner.md for the verdicts. 0 where none runs.",
        "verdict",
        PlanVerdict,
    ),
    Metric(
        name="relevo:planner_mode_info",
        kind=Kind.GAUGE,
        origin=Origin.REQUESTS,
        labels=(*MODEL, "mode"),
        help="Always 1; the label says how the workers share their work, as of the planner's last tick. Missing where "
        "no planner runs.",
    ),
    Metric(
        name="relevo:planner_wanted_workers",
        kind=Kind.GAUGE,
        origin=Origin.REQUESTS,
        labels=MODEL,
        help="Workers that the planner wants, those that are there among them; see guides/planner.md. Missing without "
        "--max-workers, and until it is known how many there are: no number is not zero.",
    ),
    _planner_count(
        "relevo:planner_number_decisions_total",
        "Decisions of the planner about the number of workers, by verdict. 0 without --max-workers.",
        "verdict",
        CountVerdict,
    ),
    _planner_count(
        "relevo:planner_scale_commands_total",
        "Runs of --scale-command that have ended, by what came of them.",
        "outcome",
        CommandOutcome,
    ),
)
