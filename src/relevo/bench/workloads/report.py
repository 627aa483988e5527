"""What came of the five workloads: goodput of every arm by phase and over all, and what the adapting arm owes. Pure.

Goodput: requests that met both targets, by the phase in which they arrived, a second of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table

from relevo.bench.arms.arm import AUTO
from relevo.bench.arms.results import ArmOutcome, PhaseOutcome, told_ms
from relevo.bench.arms.run import ArmsPlan
from relevo.bench.arms.tables import arms_table
from relevo.telemetry.latency import milliseconds

OF_BEST = 0.97  # of the best fixed mode of each workload, that the adapting arm is to reach
OF_EACH = 1.10  # of every fixed mode over all workloads


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """`ratio`: goodput of the adapting arm over that of `against`; None: that had none."""

    what: str
    against: str
    ratio: float | None
    goal: float

    @property
    def is_met(self) -> bool | None:
        """None: it cannot be told."""
        return None if self.ratio is None else self.ratio >= self.goal


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadsReport:
    plan: ArmsPlan
    load: float
    capacities: dict[str, tuple[float, str]]
    outcomes: Sequence[ArmOutcome]
    num_missing: int  # slices that are not there yet

    @property
    def phase_names(self) -> list[str]:
        return [phase.name for phase in self.outcomes[0].phases] if self.outcomes else []

    @property
    def verdicts(self) -> list[Verdict]:
        """Over the rounds that each arm has: the same for all, once nothing is missing."""
        auto = next((outcome for outcome in self.outcomes if outcome.name == AUTO), None)
        fixed = [outcome for outcome in self.outcomes if outcome.name != AUTO]
        if auto is None or not fixed:
            return []
        found = []
        for phase in auto.phases:
            others = [(other.goodput_per_s, arm.name) for arm in fixed if (other := arm.phase(phase.name)) is not None]
            best, name = max(others)
            found.append(Verdict(what=phase.name, against=name, ratio=_ratio(phase.goodput_per_s, best), goal=OF_BEST))
        for arm in fixed:
            ratio = _ratio(auto.goodput_per_s, arm.goodput_per_s)
            found.append(Verdict(what="all in sequence", against=arm.name, ratio=ratio, goal=OF_EACH))
        return found

    def to_json(self) -> dict[str, Any]:
        return {
            "options": self.plan.to_json(),
            "load": self.load,
            "capacities": {kind: {"requests_per_s": rate, "of": arm} for kind, (rate, arm) in self.capacities.items()},
            "num_missing": self.num_missing,
            "arms": [
                {
                    "name": outcome.name,
                    "rounds": outcome.rounds,
                    "goodput_per_s": outcome.goodput_per_s,
                    "num_returns": outcome.num_returns,
                    "drain_s": outcome.drain_s,
                    "switches": [asdict(switch) for switch in outcome.switches],
                    "phases": [_phase_json(phase) for phase in outcome.phases],
                }
                for outcome in self.outcomes
            ],
            "verdicts": [{**asdict(verdict), "is_met": verdict.is_met} for verdict in self.verdicts],
        }


def workloads_tables(report: WorkloadsReport) -> RenderableType:
    return Group(
        _goodput_table(report),
        _phases_table(report),
        _verdict_table(report),
        arms_table(report.plan),
        *_remarks(report),
    )


def adapted_after_s(outcome: ArmOutcome, phase: str) -> float | None:
    """The last switch of a phase, the latest of all rounds; None: nothing was changed in it."""
    return max((switch.after_s for switch in outcome.switches if switch.phase == phase), default=None)


def _goodput_table(report: WorkloadsReport) -> Table:
    table = Table(
        title=f"Requests a second within {milliseconds(report.plan.slo.ttft_s)} ms to the first token and "
        f"{milliseconds(report.plan.slo.itl_s)} ms between tokens (p90 of a request)",
        title_justify="left",
    )
    table.add_column("arm")
    for name in (*report.phase_names, "all", "switches", "back again"):
        table.add_column(name, justify="right")
    for outcome in report.outcomes:
        cells = [f"{phase.goodput_per_s:.2f} of {len(phase.answers) / phase.seconds / phase.rounds:.2f}"
                 for phase in outcome.phases]  # fmt: skip
        table.add_row(
            outcome.name,
            *cells,
            f"{outcome.goodput_per_s:.2f}",
            str(len(outcome.switches)),
            str(outcome.num_returns),
        )
    return table


def _latency_table(report: WorkloadsReport) -> Table:
    table = Table(title="Times in ms, of the client", title_justify="left")
    table.add_column("phase")
    table.add_column("arm")
    headings = ("TTFT p50", "p90", "p99", "ITL p50", "p90", "p99", "TPOT p50", "p90", "longest gap p50", "p90")
    for heading in headings:
        table.add_column(heading, justify="right")
    for outcome, phase in _rows(report):
        cells = [
            *(phase.ttft.quantiles[name] for name in ("p50", "p90", "p99")),
            *(phase.itl.quantiles[name] for name in ("p50", "p90", "p99")),
            *(phase.tpot.quantiles[name] for name in ("p50", "p90")),
            *(phase.longest_gap.quantiles[name] for name in ("p50", "p90")),
        ]
        table.add_row(phase.name, outcome.name, *map(told_ms, cells))
    return table


def _phases_table(report: WorkloadsReport) -> Table:
    table = Table(title="Phases; CPU in cores", title_justify="left")
    table.add_column("phase")
    table.add_column("arm")
    headings = ("offered/s", "sent", "failed", "unfinished", "in time", "2nd half", "adapted after, s")
    for heading in (*headings, "generator CPU", "late, ms", "server CPU"):
        table.add_column(heading, justify="right")
    for outcome, phase in _rows(report):
        table.add_row(phase.name, outcome.name, *_phase_cells(outcome, phase))
    return table


def _rows(report: WorkloadsReport) -> list[tuple[ArmOutcome, PhaseOutcome]]:
    return [
        (outcome, phase)
        for name in report.phase_names
        for outcome in report.outcomes
        if (phase := outcome.phase(name)) is not None
    ]


def _phase_cells(outcome: ArmOutcome, phase: PhaseOutcome) -> list[str]:
    after_s = adapted_after_s(outcome, phase.name)
    num_late = sum(answer.due_s >= phase.seconds / 2 for answer in phase.answers)
    late_met = phase.late_goodput_per_s * phase.seconds * phase.rounds / 2
    return [
        f"{phase.requests_per_s:.2f}",
        str(len(phase.answers)),
        str(phase.num_failed),
        str(phase.num_unfinished),
        _percent(phase.num_met, len(phase.answers)),
        _percent(late_met, num_late),
        "-" if after_s is None else f"{after_s:.1f}",
        f"{phase.generator_cpu:.2f}",
        milliseconds(phase.most_late_s),
        f"{phase.server_cpu:.2f}",
    ]


def _verdict_table(report: WorkloadsReport) -> Table:
    table = Table(title=f"Goodput of {AUTO} over that of fixed modes", title_justify="left")
    table.add_column("workload")
    table.add_column("against")
    for heading in ("ratio", "goal", "verdict"):
        table.add_column(heading, justify="right")
    for verdict in report.verdicts:
        told = "-" if verdict.ratio is None else f"{verdict.ratio:.2f}x"
        met = {True: "met", False: "missed", None: "nothing was in time"}[verdict.is_met]
        table.add_row(verdict.what, verdict.against, told, f"{verdict.goal:.2f}x", met)
    return table


def _remarks(report: WorkloadsReport) -> list[str]:
    told = [f"{kind} {rate:.2f}/s ({arm})" for kind, (rate, arm) in report.capacities.items()]
    found = []
    if told:
        found.append(
            f"Sustained by clients that wait: {', '.join(told)}. Each phase offers {report.load:.0%} of that, in open "
            "loop."
        )
    found.append(
        "Before the first phase there is a warm-up, after the last one requests drain; neither counts. Quantiles need "
        "ten samples beyond them. The load generator shares the machine; late is its own fault, at most."
    )
    return found


def _phase_json(phase: PhaseOutcome) -> dict[str, Any]:
    return {
        "name": phase.name,
        "seconds": phase.seconds,
        "requests_per_s": phase.requests_per_s,
        "num_sent": len(phase.answers),
        "num_met": phase.num_met,
        "num_failed": phase.num_failed,
        "num_unfinished": phase.num_unfinished,
        "goodput_per_s": phase.goodput_per_s,
        "second_half_goodput_per_s": phase.late_goodput_per_s,
        "ttft_s": phase.ttft.to_json(),
        "itl_s": phase.itl.to_json(),
        "tpot_s": phase.tpot.to_json(),
        "longest_gap_s": phase.longest_gap.to_json(),
        "generator_cpu": phase.generator_cpu,
        "server_cpu": phase.server_cpu,
        "most_late_s": phase.most_late_s,
    }


def _ratio(value: float, other: float) -> float | None:
    return value / other if other > 0 else None


def _percent(part: float, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "-"
