"""`bench roles` as a report. Pure."""

from __future__ import annotations

from relevo.bench.html.figures import Axis, Curve, Look, Plot, cumulative
from relevo.bench.html.page import Report
from relevo.bench.roles.report import RolesResult, roles_tables
from relevo.telemetry.distribution import Samples


def roles_page(result: RolesResult) -> Report:
    during = [gap for _, gap in result.switching_gaps]
    limit = [] if result.limit_s is None else [(1e3 * result.limit_s, "three times the quiet p99")]
    longest = [(one.asked_at_s, 1e3 * one.longest_gap_s) for one in result.switches if one.longest_gap_s]
    effects = [(one.asked_at_s, 1e3 * one.effect_s) for one in result.switches if one.effect_s]
    gaps = cumulative(
        "Gaps between tokens", {"quiet": Samples(result.quiet_gaps_s), "while roles change": Samples(during)}
    )
    return Report(
        title="Workers that change their roles under load",
        sentence=roles_sentence(result),
        tables=roles_tables(result),
        figures=[
            Plot(
                title=gaps.title,
                x=gaps.x,
                y=gaps.y,
                curves=gaps.curves,
                moments=limit if gaps.curves else [],
                note="The dashed line: three times the quiet p99." if limit else "",
            ),
            _over_time("Longest gap after each switch", longest),
            _over_time("Asked until the worker has its role", effects),
        ],
        notes=result.failed,
    )


def roles_sentence(result: RolesResult) -> str:
    failed = [what for what, _, holds in result.bars if holds is False]
    untold = [what for what, _, holds in result.bars if holds is None]
    told = f"{len(result.switches)} switches; "
    told += f"does not hold: {'; '.join(failed)}" if failed else "all that could be told holds"
    return told + (f"; cannot be told: {'; '.join(untold)}." if untold else ".")


def _over_time(title: str, points: list[tuple[float, float]]) -> Plot:
    return Plot(
        title=title,
        x=Axis(label="seconds", from_zero=True),
        y=Axis(label="ms", from_zero=True),
        curves=[Curve("each", points, Look.DOTS)] if points else [],
    )
