"""`relevo bench start`: parses argv, measures, prints the table, writes JSON."""

from __future__ import annotations

import shlex
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from relevo.bench.environment import describe_environment
from relevo.bench.stamp import stamped
from relevo.bench.start.report import start_page, start_table
from relevo.bench.start.run import StartCost, StartOptions, bytecode_notes, measure_start
from relevo.cli.bench_terminal import JsonOut, finish, note, out, run, write_json, write_page
from relevo.cli.quiet import Quiet
from relevo.cli.report_file import ReportOut


def start(
    model: Annotated[str | None, typer.Argument(help="What `relevo serve` is given. Default: its own default.")] = None,
    topology: Annotated[list[str] | None, typer.Option(help="Repeat. Default: unified and 1p1d.")] = None,
    serve_args: Annotated[str, typer.Option(help="Flags for every server.")] = "",
    rounds: Annotated[int, typer.Option(min=1, help="Starts of every topology: A B A B.")] = 5,
    log_dir: Annotated[Path | None, typer.Option(help="Server logs. Default: a temporary folder.")] = None,
    json_out: JsonOut = None,
    report_out: ReportOut = None,
    quiet: Quiet = False,
) -> None:
    """From `relevo serve` to its first streamed token, and which process computed how long for it."""
    environment = describe_environment()
    costs: list[StartCost] = []
    notes = bytecode_notes()  # before: a start may write what was lacking
    with tempfile.TemporaryDirectory(prefix="relevo-bench-") as folder:
        options = StartOptions(
            model=model,
            topologies=topology or ["unified", "1p1d"],
            serve_flags=tuple(shlex.split(serve_args)),
            rounds=rounds,
            log_dir=log_dir or Path(folder),
        )
        interrupted = run(lambda progress: measure_start(options, costs, progress))
    out.print(start_table(costs))
    for line in notes:
        note(line)
    starts = [cost.to_json() for cost in costs]
    told = {"model": model or "the default model", "rounds": rounds, "starts": starts, "notes": notes}
    body = stamped("start", told, interrupted=interrupted)
    write_json(json_out, environment, body)
    write_page(report_out, lambda: start_page(costs), environment, body, interrupted)
    finish(interrupted)
