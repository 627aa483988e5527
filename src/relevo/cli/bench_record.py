"""`relevo bench record`: parses argv, runs, says where the runs are."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from relevo.bench.environment import describe_environment
from relevo.bench.record.pictures import RecordedRun, record_page
from relevo.bench.record.run import RecordOptions
from relevo.bench.record.run import record as run_record
from relevo.cli.bench_terminal import Seed, finish, friendly, integers, lengths, note, run, write_page
from relevo.cli.quiet import Quiet
from relevo.cli.report_file import ReportOut


def record(
    folder: Annotated[Path, typer.Argument(help="Where the runs are written, a folder per topology.")],
    model: Annotated[str | None, typer.Argument(help="What `relevo serve` is given. Default: its own default.")] = None,
    topology: Annotated[list[str] | None, typer.Option(help="Repeat. Default: unified and 1p1d.")] = None,
    serve_args: Annotated[str, typer.Option(help="Flags for every server.")] = "",
    load_percent: Annotated[str, typer.Option(help="Open loops at so much of what was sustained.")] = "30,60,90,120",
    duration_s: Annotated[float, typer.Option(min=1.0, help="Arrivals of an open loop.")] = 40.0,
    calibration_s: Annotated[float, typer.Option(min=1.0, help="One client alone, and all clients.")] = 20.0,
    num_clients: Annotated[int, typer.Option(min=1, help="That wait for their answers: what is sustained.")] = 8,
    input_len: Annotated[str, typer.Option(help="Prompt tokens: 512, 128-768 or lognormal:600,2.0.")] = "128-768",
    output_len: Annotated[str, typer.Option(help="Output tokens, written the same way.")] = "32-96",
    seed: Seed = 0,
    report_out: ReportOut = None,
    quiet: Quiet = False,
) -> None:
    """Load test own servers and keep what a simulation of the same runs needs: rung 6 of the error ladder."""
    options = RecordOptions(
        folder=folder,
        model=model,
        topologies=topology or ["unified", "1p1d"],
        serve_flags=tuple(shlex.split(serve_args)),
        load_percents=integers(load_percent, "--load-percent"),
        duration_s=duration_s,
        calibration_s=calibration_s,
        num_clients=num_clients,
        input_lengths=lengths(input_len),
        output_lengths=lengths(output_len),
        seed=seed,
    )
    friendly(options.check)
    environment = describe_environment()
    runs: list[RecordedRun] = []
    interrupted = run(lambda progress: run_record(options, environment, runs, progress))
    body = {"runs": [asdict(each) for each in runs]}
    write_page(report_out, lambda: record_page(runs, str(folder)), environment, body, interrupted)
    if not interrupted:
        note(f"compare: python -m relevo.sim.ladder {shlex.quote(str(folder))} --rung 6")
    finish(interrupted)
