"""What came of agent traffic at several loads: gaps that streams saw, first tokens, and the front of both. Pure.

An arm is on the front of a load if no other is at least as good in both: p90 of the time to the first token, and p99 of
the gaps. The throughput-best unified server is the arm of the capacity measurement that sustained most.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table

from relevo.bench.arms.results import ArmOutcome, PhaseOutcome, by_time, told_ms
from relevo.bench.arms.run import ArmsPlan
from relevo.bench.arms.tables import arms_table
from relevo.telemetry.latency import milliseconds

ITL_GOAL = 3.0  # times lower than the throughput-best unified server's, p90 and p99
TTFT_GOAL = 1.1  # times its p90, at most


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One arm at one load. None: too few samples, or it never came."""

    arm: str
    is_unified: bool
    is_fixed: bool
    phase: PhaseOutcome

    @property
    def ttft_p90_s(self) -> float | None:
        return self.phase.ttft.value("p90")

    def itl_s(self, name: str) -> float | None:
        return self.phase.itl.value(name)

    def itl_by_time_s(self, q: float) -> float | None:
        return by_time(self.phase.gaps_s, q)

    @property
    def place(self) -> tuple[float, float] | None:
        """On both axes of the front."""
        ttft_s, itl_s = self.ttft_p90_s, self.itl_s("p99")
        return None if ttft_s is None or itl_s is None else (ttft_s, itl_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontierReport:
    plan: ArmsPlan
    capacity_per_s: float
    best_unified: str  # of the capacity measurement
    capacities: Mapping[str, float]  # by arm
    outcomes: Sequence[ArmOutcome]
    num_missing: int

    @property
    def loads(self) -> list[str]:
        return [phase.name for phase in self.outcomes[0].phases] if self.outcomes else []

    def points(self, load: str) -> list[Point]:
        arms = {arm.name: arm for arm in self.plan.arms}
        return [
            Point(arm=one.name, is_unified=arms[one.name].is_unified, is_fixed=arms[one.name].is_fixed, phase=phase)
            for one in self.outcomes
            if (phase := one.phase(load)) is not None
        ]

    def to_json(self) -> dict[str, Any]:
        return {
            "options": self.plan.to_json(),
            "capacity_per_s": self.capacity_per_s,
            "best_unified": self.best_unified,
            "capacities": dict(self.capacities),
            "num_missing": self.num_missing,
            "loads": [
                {
                    "load": load,
                    "front": [point.arm for point in front(points)],
                    "outside_of_all_unified": [point.arm for point in points if is_outside(point, points)],
                    "arms": [_point_json(point) for point in points],
                    "ratios": {point.arm: ratios(point, self._reference(points)) for point in points},
                }
                for load in self.loads
                for points in [self.points(load)]
            ],
        }

    def _reference(self, points: Sequence[Point]) -> Point | None:
        return next((point for point in points if point.arm == self.best_unified), None)

    def ratios_at(self, load: str) -> dict[str, dict[str, float | None]]:
        points = self.points(load)
        reference = self._reference(points)
        return {point.arm: ratios(point, reference) for point in points if not point.is_unified}


def front(points: Sequence[Point]) -> list[Point]:
    """Those that no other one is at least as good as in both, and better in one. Unknown places are left out."""
    placed = [(point, place) for point in points if (place := point.place) is not None]
    return [point for point, place in placed if not any(_beats(other, place) for _, other in placed)]


def is_outside(point: Point, points: Sequence[Point]) -> bool:
    """No unified chunk size is at least as good in both, nor, for what adapts, any other fixed mode."""
    place = point.place
    if place is None or point.is_unified:
        return False
    others = [other for other in points if other.is_unified or (other.is_fixed and not point.is_fixed)]
    places = [other.place for other in others if other.place is not None]
    return bool(places) and not any(ttft <= place[0] and itl <= place[1] for ttft, itl in places)


def ratios(point: Point, reference: Point | None) -> dict[str, float | None]:
    """ITL: how many times lower than the reference's. TTFT: how many times the reference's."""
    if reference is None:
        return {}

    def over(value: float | None, other: float | None) -> float | None:
        return None if value is None or not other else value / other

    found = {f"itl_{name}": over(reference.itl_s(name), point.itl_s(name)) for name in ("p90", "p99")}
    for name, q in (("p90", 0.9), ("p99", 0.99)):
        found[f"itl_by_time_{name}"] = over(reference.itl_by_time_s(q), point.itl_by_time_s(q))
    for name in ("p50", "p90", "p99"):
        found[f"ttft_{name}"] = over(point.phase.ttft.value(name), reference.phase.ttft.value(name))
    return found


def meets(found: Mapping[str, float | None]) -> bool | None:
    """Both goals at once; None: it cannot be told."""
    needed = [found.get(name) for name in ("itl_p90", "itl_p99", "ttft_p90")]
    if any(value is None for value in needed):
        return None
    itl_p90, itl_p99, ttft_p90 = (value or 0.0 for value in needed)
    return min(itl_p90, itl_p99) >= ITL_GOAL and ttft_p90 <= TTFT_GOAL


def frontier_tables(report: FrontierReport) -> RenderableType:
    return Group(
        *(_load_table(report, load) for load in report.loads),
        _ratio_table(report),
        _counts_table(report),
        arms_table(report.plan),
        *_remarks(report),
    )


def _load_table(report: FrontierReport, load: str) -> Table:
    points = report.points(load)
    best = {point.arm for point in front(points)}
    rate = points[0].phase.requests_per_s if points else 0.0
    table = Table(title=f"Agents at {load}, {rate:.2f} requests/s; times in ms, of the client", title_justify="left")
    table.add_column("arm")
    headings = ("ITL p50", "p90", "p99", "by time p90", "p99", "longest p50", "p90", "max", "TPOT p50", "p90")
    for heading in (*headings, "TTFT p50", "p90", "p99", "front"):
        table.add_column(heading, justify="right")
    for point in points:
        phase = point.phase
        itl, ttft, tpot, longest = phase.itl, phase.ttft, phase.tpot, phase.longest_gap
        marks = ["front"] if point.arm in best else []
        marks += ["outside"] if is_outside(point, points) else []
        table.add_row(
            point.arm,
            *(told_ms(itl.quantiles[name]) for name in ("p50", "p90", "p99")),
            *(told_ms(point.itl_by_time_s(q)) for q in (0.9, 0.99)),
            *(told_ms(longest.quantiles[name]) for name in ("p50", "p90")),
            told_ms(longest.max),
            *(told_ms(tpot.quantiles[name]) for name in ("p50", "p90")),
            *(told_ms(ttft.quantiles[name]) for name in ("p50", "p90", "p99")),
            ", ".join(marks),
        )
    return table


def _counts_table(report: FrontierReport) -> Table:
    table = Table(title="Requests; CPU in cores", title_justify="left")
    table.add_column("load")
    table.add_column("arm")
    headings = (
        "offered/s",
        "sent",
        "failed",
        "unfinished",
        "gaps",
        "switches",
        "generator CPU",
        "late, ms",
        "server CPU",
    )
    for heading in headings:
        table.add_column(heading, justify="right")
    switches = {outcome.name: outcome.switches for outcome in report.outcomes}
    for load in report.loads:
        for point in report.points(load):
            phase = point.phase
            table.add_row(
                load,
                point.arm,
                f"{phase.requests_per_s:.2f}",
                str(len(phase.answers)),
                str(phase.num_failed),
                str(phase.num_unfinished),
                f"{len(phase.gaps_s):,}",
                str(sum(switch.phase == load for switch in switches[point.arm])),
                f"{phase.generator_cpu:.2f}",
                milliseconds(phase.most_late_s),
                f"{phase.server_cpu:.2f}",
            )
    return table


def _ratio_table(report: FrontierReport) -> Table:
    table = Table(
        title=f"Beside {report.best_unified or 'unified'}, the throughput-best unified server: ITL times lower, "
        "TTFT times as long",
        title_justify="left",
    )
    table.add_column("load")
    table.add_column("arm")
    headings = ("ITL p90", "ITL p99", "by time p90", "p99", "TTFT p50", "p90", "p99")
    for heading in (*headings, f"ITL {ITL_GOAL:g}x, TTFT {TTFT_GOAL:g}x"):
        table.add_column(heading, justify="right")
    verdict = {True: "met", False: "missed", None: "too few samples"}
    for load in report.loads:
        for arm, found in report.ratios_at(load).items():
            if found:
                cells = ["-" if value is None else f"{value:.2f}x" for value in found.values()]
                table.add_row(load, arm, *cells, verdict[meets(found)])
    return table


def _remarks(report: FrontierReport) -> list[str]:
    found = []
    if report.capacities:
        told = ", ".join(f"{arm} {rate:.2f}/s" for arm, rate in report.capacities.items())
        found.append(f"Sustained by clients that wait: {told}. Loads are shares of the most, in open loop.")
    found.append(
        "ITL counts every gap once; by time, a gap counts as long as it lasts: what a stream sees at a random moment. "
        "front: no other arm is at least as good in TTFT p90 and ITL p99. outside: no unified chunk size is, nor, for "
        "auto, any fixed mode. Quantiles need ten samples beyond them. The load generator "
        "shares the machine; late is its own fault, at most."
    )
    return found


def _point_json(point: Point) -> dict[str, Any]:
    phase = point.phase
    return {
        "arm": point.arm,
        "requests_per_s": phase.requests_per_s,
        "num_sent": len(phase.answers),
        "num_failed": phase.num_failed,
        "num_unfinished": phase.num_unfinished,
        "itl_s": phase.itl.to_json(),
        "itl_by_time_s": {name: point.itl_by_time_s(q) for name, q in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99))},
        "tpot_s": phase.tpot.to_json(),
        "longest_gap_s": phase.longest_gap.to_json(),
        "ttft_s": phase.ttft.to_json(),
        "generator_cpu": phase.generator_cpu,
        "server_cpu": phase.server_cpu,
        "most_late_s": phase.most_late_s,
    }


def _beats(other: tuple[float, float], place: tuple[float, float]) -> bool:
    return other[0] <= place[0] and other[1] <= place[1] and other != place
