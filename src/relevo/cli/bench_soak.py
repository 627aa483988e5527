"""`relevo bench soak`: parses argv, runs, prints the tables, writes JSON."""

from __future__ import annotations

import shlex
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Group
from rich.table import Table

from relevo.bench.environment import describe_environment
from relevo.bench.soak.pictures import soak_page
from relevo.bench.soak.report import SoakResult
from relevo.bench.soak.run import SoakOptions
from relevo.bench.soak.run import soak as run_soak
from relevo.bench.soak.traffic import TrafficOptions
from relevo.cli.bench_terminal import JsonOut, Seed, finish, note, out, run, write_json, write_page
from relevo.cli.quiet import Quiet
from relevo.cli.report_file import ReportOut

NUM_SHOWN = 5  # of what is wrong


def soak(
    model: Annotated[str, typer.Argument(help="What `relevo serve` is given.")] = "fake",
    serve_args: Annotated[str, typer.Option(help="Flags for the server.")] = (
        "--topology 2p2d --num-kv-blocks 512 --max-model-len 2048 --fake-base-s 0.01 --fake-per-token-s 0.0002"
    ),
    minutes: Annotated[float, typer.Option(min=0.1, help="How long clients send.")] = 30.0,
    kill_every_minutes: Annotated[
        float, typer.Option(min=0, help="kill -9 of a worker, never of the last of a role; 0: none.")
    ] = 5.0,
    warm_up_minutes: Annotated[
        float | None, typer.Option(min=0, help="Memory of a process before that is not counted. Default: a sixth.")
    ] = None,
    max_slope_mb_per_h: Annotated[float, typer.Option(min=0, help="Faster growth of a process fails the run.")] = 10.0,
    num_clients: Annotated[int, typer.Option(min=1, help="Clients at a time.")] = 12,
    max_tokens: Annotated[int, typer.Option(min=1, help="Longest answer to a question.")] = 48,
    seed: Seed = 0,
    json_out: JsonOut = None,
    report_out: ReportOut = None,
    quiet: Quiet = False,
) -> None:
    """Mixed load, aborts and kills for a long time: wrong answers, lost requests, ledger rows, memory growth."""
    environment = describe_environment()
    with tempfile.TemporaryDirectory(prefix="relevo-bench-") as folder:
        options = SoakOptions(
            model=model,
            serve_flags=tuple(shlex.split(serve_args)),
            folder=Path(folder),
            duration_s=60 * minutes,
            kill_every_s=60 * kill_every_minutes,
            warm_up_s=60 * (minutes / 6 if warm_up_minutes is None else warm_up_minutes),
            traffic=TrafficOptions(num_clients=num_clients, max_tokens=max_tokens),
            seed=seed,
        )
        result = SoakResult()
        interrupted = run(lambda progress: run_soak(options, result, progress))
    tables = Group(_requests_table(result), _memory_table(result, max_slope_mb_per_h))
    out.print(tables)
    wrong = [*result.wrong, *result.unaccounted, *([result.leftovers] if result.leftovers else [])]
    for line in wrong[:NUM_SHOWN]:
        note(line[:400])
    tracks = result.memory.tracks.values()
    grown = [f"{each.name} ({each.pid})" for each in tracks if (each.slope_mb_per_h or 0.0) > max_slope_mb_per_h]
    body = _to_json(result)
    write_json(json_out, environment, body)
    write_page(report_out, lambda: soak_page(result, tables, wrong, grown), environment, body, interrupted)
    finish(interrupted, failed=bool(wrong or grown))


def _requests_table(result: SoakResult) -> Table:
    table = Table("requests", "sent", "complete", "wrong or failed", title=f"{len(result.kills)} kills")
    for kind in ("question", "leaver", "nonsense"):
        num_wrong = sum(1 for one in result.asked if one.kind == kind and one.wrong)
        table.add_row(kind, str(result.count(kind)), str(result.count(kind, complete=True)), str(num_wrong))
    table.add_row("not as the ledger says", "", "", str(len(result.unaccounted)))
    table.add_row("in use after the end", "", "", result.leftovers or "nothing")
    return table


def _memory_table(result: SoakResult, limit: float) -> Table:
    table = Table(
        "process", "pid", "lived, s", "first, MB", "last, MB", "largest, MB", "counted, s", f"MB/h (limit {limit:g})"
    )
    for track in result.memory.tracks.values():
        sizes = [size / 1e6 for size in track.resident_bytes]
        told = "too short" if track.slope_mb_per_h is None else f"{track.slope_mb_per_h:+.1f}"
        lived_s = track.at_s[-1] - track.at_s[0]
        cells = (f"{sizes[0]:.1f}", f"{sizes[-1]:.1f}", f"{max(sizes):.1f}", f"{track.counted_s:.0f}", told)
        table.add_row(track.name, str(track.pid), f"{lived_s:.0f}", *cells)
    return table


def _to_json(result: SoakResult) -> dict[str, Any]:
    return {
        "requests": {
            kind: {"sent": result.count(kind), "complete": result.count(kind, complete=True)}
            for kind in ("question", "leaver", "nonsense")
        },
        "kills": [{"at_s": at_s, "worker": worker} for at_s, worker in result.kills],
        "wrong": result.wrong,
        "unaccounted": result.unaccounted,
        "leftovers": result.leftovers,
        "processes": [
            {
                "name": track.name,
                "pid": track.pid,
                "slope_mb_per_h": track.slope_mb_per_h,
                "counted_s": track.counted_s,
                "at_s": track.at_s,
                "resident_bytes": track.resident_bytes,
            }
            for track in result.memory.tracks.values()
        ],
    }
