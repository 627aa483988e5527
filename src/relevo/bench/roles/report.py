"""What came of the switches, and whether each thing that must hold did. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table

from relevo.bench.arms.results import told_ms
from relevo.telemetry.distribution import Distribution, distribution
from relevo.telemetry.latency import milliseconds

EFFECT_S = 2.0  # a role that was asked for has to be there within
TIMES_QUIET_P99 = 3.0  # no gap is to be longer


@dataclass(slots=True, kw_only=True)
class Switched:
    """One switch. Times in seconds since the switching began."""

    worker: str
    before: str
    role: str
    asked_at_s: float
    effect_s: float | None = None  # asked -> the worker says that it has it; None: it never did
    longest_gap_s: float = 0.0  # of any stream, until the next switch
    refused: str = ""


@dataclass(slots=True, kw_only=True)
class StressCheck:
    name: str
    num_done: int = 0
    wrong: list[str] = field(default_factory=list)


@dataclass(slots=True)
class RolesResult:
    """Complete for what had ended when it was stopped."""

    quiet_gaps_s: list[float] = field(default_factory=list)
    quiet_s: float = 0.0
    switching_gaps: list[tuple[float, float]] = field(default_factory=list)  # (ended at, seconds)
    switching_s: float = 0.0
    switches: list[Switched] = field(default_factory=list)
    num_wanted: int = 0
    num_asked: dict[str, int] = field(default_factory=dict)  # by kind of request, over everything but the stress
    wrong: list[str] = field(default_factory=list)
    leftovers: str | None = None  # None: it was not looked at
    stress: list[StressCheck] = field(default_factory=list)
    generator_cpu: float = 0.0  # cores, while switching
    server_cpu: float = 0.0

    @property
    def quiet(self) -> Distribution:
        return distribution(self.quiet_gaps_s)

    @property
    def during(self) -> Distribution:
        return distribution([gap for _, gap in self.switching_gaps])

    @property
    def limit_s(self) -> float | None:
        p99_s = self.quiet.value("p99")
        return None if p99_s is None else TIMES_QUIET_P99 * p99_s

    def num_above(self, gaps_s: Sequence[float]) -> int | None:
        limit_s = self.limit_s
        return None if limit_s is None else sum(gap > limit_s for gap in gaps_s)

    @property
    def effects(self) -> Distribution:
        known = [one.effect_s for one in self.switches if one.effect_s is not None]
        return distribution(known, num_missing=len(self.switches) - len(known))

    @property
    def bars(self) -> list[tuple[str, str, bool | None]]:
        """What must hold, what was found, and whether it does; None: it cannot be told."""
        num = len(self.switches)
        all_done = num >= self.num_wanted > 0
        slowest = max((one.effect_s for one in self.switches if one.effect_s is not None), default=None)
        in_time = [one.effect_s is not None and one.effect_s <= EFFECT_S for one in self.switches]
        largest = self.during.max
        is_small = None if self.limit_s is None or largest is None else largest <= self.limit_s
        num_requests = sum(self.num_asked.values())
        return [
            (f"{self.num_wanted} switches", f"{num} were made", all_done),
            (
                "no request lost or changed",
                f"{len(self.wrong)} of {num_requests:,}",
                not self.wrong if num_requests else None,
            ),
            (
                f"effect within {EFFECT_S:g} s",
                f"slowest {milliseconds(slowest)} ms, {sum(in_time)} of {num} in time",
                all(in_time) if num else None,
            ),
            (
                "blocks and requests back to baseline",
                "not looked at" if self.leftovers is None else self.leftovers or "nothing is held",
                None if self.leftovers is None else not self.leftovers,
            ),
            (
                f"no gap above {TIMES_QUIET_P99:g}x the p99 of the quiet time",
                f"largest {milliseconds(largest)} ms, limit {milliseconds(self.limit_s)} ms",
                is_small,
            ),
        ]

    @property
    def failed(self) -> list[str]:
        found = [f"{what}: {told}" for what, told, holds in self.bars if holds is False]
        return found + [f"{check.name}: {wrong}" for check in self.stress for wrong in check.wrong]

    def to_json(self) -> dict[str, Any]:
        return {
            "bars": [{"what": what, "found": told, "holds": holds} for what, told, holds in self.bars],
            "num_requests": self.num_asked,
            "wrong": self.wrong,
            "leftovers": self.leftovers,
            "quiet_itl_s": self.quiet.to_json(),
            "switching_itl_s": self.during.to_json(),
            "limit_s": self.limit_s,
            "num_above_limit_quiet": self.num_above(self.quiet_gaps_s),
            "num_above_limit_switching": self.num_above([gap for _, gap in self.switching_gaps]),
            "effect_s": self.effects.to_json(),
            "switches": [asdict(one) for one in self.switches],
            "stress": [asdict(check) for check in self.stress],
            "generator_cpu": self.generator_cpu,
            "server_cpu": self.server_cpu,
        }


def roles_tables(result: RolesResult) -> RenderableType:
    words = {True: "holds", False: "does not hold", None: "cannot be told"}
    bars = Table("what must hold", "found", "verdict", title="Role switches under load", title_justify="left")
    for what, told, holds in result.bars:
        bars.add_row(what, told, words[holds])
    gaps = Table(title="Gaps between tokens of the streams, ms", title_justify="left")
    for heading in ("", "seconds", "gaps", "p50", "p90", "p99", "longest", "above the limit"):
        gaps.add_column(heading, justify="left" if not heading else "right")
    during = [gap for _, gap in result.switching_gaps]
    for name, seconds, found, values in (
        ("quiet", result.quiet_s, result.quiet, result.quiet_gaps_s),
        ("while roles change", result.switching_s, result.during, during),
    ):
        quantiles = (told_ms(found.quantiles[each]) for each in ("p50", "p90", "p99"))
        above = result.num_above(values)
        told = "-" if above is None else str(above)
        gaps.add_row(name, f"{seconds:.0f}", f"{found.count:,}", *quantiles, milliseconds(found.max), told)
    return Group(bars, gaps, _by_role(result), _stress_table(result), *_remarks(result))


def _by_role(result: RolesResult) -> Table:
    table = Table(title="Switches by new role", title_justify="left")
    for heading in ("role", "switches", "effect median, ms", "slowest", "longest gap until the next one, ms"):
        table.add_column(heading, justify="left" if heading == "role" else "right")
    for role in sorted({one.role for one in result.switches}):
        of_role = [one for one in result.switches if one.role == role]
        effects = sorted(one.effect_s for one in of_role if one.effect_s is not None)
        table.add_row(
            role,
            str(len(of_role)),
            milliseconds(effects[len(effects) // 2] if effects else None),
            milliseconds(effects[-1] if effects else None),
            milliseconds(max(one.longest_gap_s for one in of_role)),
        )
    return table


def _stress_table(result: RolesResult) -> Table:
    table = Table("stress", "done", "wrong", title="Beside: switches at their worst; gaps are not judged here")
    for check in result.stress:
        table.add_row(check.name, str(check.num_done), "; ".join(check.wrong[:3]) or "nothing")
    return table


def _remarks(result: RolesResult) -> list[str]:
    asked = ", ".join(f"{count:,} {kind}s" for kind, count in result.num_asked.items())
    return [
        f"Every answer is compared with that of a quiet unified server ({asked or 'none yet'}). While roles changed, "
        f"the load generator took {result.generator_cpu:.2f} cores, the server {result.server_cpu:.2f}."
    ]
