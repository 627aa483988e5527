"""`bench soak` as a report: memory of every process over time, and what became of the requests. Pure."""

from __future__ import annotations

from rich.console import RenderableType

from relevo.bench.html.figures import Axis, Bar, Bars, Curve, Plot
from relevo.bench.html.page import Report
from relevo.bench.soak.report import SoakResult


def soak_page(result: SoakResult, tables: RenderableType, wrong: list[str], grown: list[str]) -> Report:
    """`wrong`: sentences on requests; `grown`: processes that grew faster than allowed."""
    tracks = [track for track in result.memory.tracks.values() if track.at_s]
    return Report(
        title="Soak: mixed load, aborts and kills",
        sentence=_sentence(result, wrong, grown),
        tables=tables,
        figures=[
            Plot(
                title="Resident memory by process",
                x=Axis(label="seconds", from_zero=True),
                y=Axis(label="MB", from_zero=True),
                curves=[
                    Curve(
                        f"{track.name} ({track.pid})",
                        [(at, size / 1e6) for at, size in zip(track.at_s, track.resident_bytes, strict=True)],
                    )
                    for track in tracks
                ],
                moments=[(at_s, f"kill -9 of {worker}") for at_s, worker in result.kills] if tracks else [],
                note="Dashed lines are kills.",
            ),
            Bars(
                title="Requests",
                axis=Axis(label="requests"),
                rows=[
                    Bar(kind, {"complete": num_complete, "not complete": result.count(kind) - num_complete})
                    for kind in ("question", "leaver", "nonsense")
                    for num_complete in [result.count(kind, complete=True)]
                ],
                note="Leavers go away before the end, and nonsense is refused.",
            ),
        ],
        notes=wrong,
    )


def _sentence(result: SoakResult, wrong: list[str], grown: list[str]) -> str:
    faults = f"{len(wrong):,} wrong" if wrong else "none of them wrong or unaccounted for"
    memory = f"{', '.join(grown)} grew too fast" if grown else "no process grew too fast"
    return f"{len(result.asked):,} requests over {len(result.kills)} kills, {faults}; {memory}."
