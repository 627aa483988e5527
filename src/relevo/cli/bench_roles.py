"""`relevo bench roles`: parses argv, runs, prints what holds and what does not, writes JSON and a report."""

from __future__ import annotations

import shlex
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from relevo.bench.environment import describe_environment
from relevo.bench.roles.pictures import roles_page, roles_sentence
from relevo.bench.roles.questions import QuestionOptions
from relevo.bench.roles.report import RolesResult, roles_tables
from relevo.bench.roles.run import RolesOptions, switch_roles
from relevo.cli.bench_terminal import JsonOut, Seed, finish, note, out, run, write_json, write_page
from relevo.cli.quiet import Quiet
from relevo.cli.report_file import ReportOut

NUM_SHOWN = 5  # of what is wrong


def roles(
    model: Annotated[str | None, typer.Argument(help="What `relevo serve` is given. Default: its own default.")] = None,
    topology: Annotated[str, typer.Option(help="Of the server whose workers change.")] = "1p1d",
    serve_args: Annotated[str, typer.Option(help="Further flags for it and for the quiet one.")] = "",
    switches: Annotated[int, typer.Option(min=1, help="How many.")] = 200,
    interval_s: Annotated[float, typer.Option(min=0.05, help="From one to the next.")] = 1.0,
    quiet_s: Annotated[float, typer.Option(min=1.0, help="The same load without switches, before.")] = 60.0,
    streams: Annotated[int, typer.Option(min=1, help="Streams at a time.")] = 32,
    prompts_per_s: Annotated[float, typer.Option(help="Long prompts that arrive besides.")] = 0.3,
    slo_itl_ms: Annotated[
        float | None, typer.Option(min=1.0, help="The server is told to keep steps with prompts below it.")
    ] = None,
    stress: Annotated[bool, typer.Option(help="Then two operators at once, and kill -9 of workers.")] = True,
    kills: Annotated[int, typer.Option(min=0, help="Of workers, as they are asked for a role.")] = 4,
    log_dir: Annotated[Path | None, typer.Option(help="Server logs. Default: a temporary folder.")] = None,
    seed: Seed = 0,
    json_out: JsonOut = None,
    report_out: ReportOut = None,
    quiet: Quiet = False,
) -> None:
    """Roles of workers change under streams and prompts: no answer lost or changed, effect in time, no long gap."""
    target = () if slo_itl_ms is None else ("--slo-itl-p90", f"{slo_itl_ms / 1e3:g}")
    options = RolesOptions(
        model=model,
        serve_flags=("--topology", topology, *target),
        common_flags=tuple(shlex.split(serve_args)),
        num_switches=switches,
        interval_s=interval_s,
        quiet_s=quiet_s,
        has_stress=stress,
        num_kills=kills,
        questions=QuestionOptions(num_streams=streams, prompts_per_s=prompts_per_s, seed=seed),
        seed=seed,
        log_dir=log_dir or Path(tempfile.mkdtemp(prefix="relevo-bench-")),
    )
    environment = describe_environment()
    result = RolesResult()
    interrupted = run(lambda progress: switch_roles(options, result, progress))
    out.print(roles_tables(result))
    for line in (*result.wrong, *result.failed)[:NUM_SHOWN]:
        note(line[:400])
    note(roles_sentence(result))
    body = {"result": result.to_json()}
    write_json(json_out, environment, body)
    write_page(report_out, lambda: roles_page(result), environment, body, interrupted)
    finish(interrupted, failed=bool(result.failed))
