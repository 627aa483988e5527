"""`relevo bench requests`: parses argv, measures, prints the table, writes JSON."""

from __future__ import annotations

from typing import Annotated

import typer

from relevo.bench.environment import describe_environment
from relevo.build.bench_requests import NUM_KEPT, KeepingCost, keeping_page, keeping_table, measure_keeping
from relevo.cli.bench_terminal import JsonOut, finish, out, run_here, write_json, write_page
from relevo.cli.quiet import Quiet
from relevo.cli.report_file import ReportOut
from relevo.telemetry.progress import Progress


def requests(
    num_requests: Annotated[int, typer.Option(min=1, help="Made up, and written one after the other.")] = 3 * NUM_KEPT,
    json_out: JsonOut = None,
    report_out: ReportOut = None,
    quiet: Quiet = False,
) -> None:
    """What it costs a gateway to keep requests and their phases: CPU time and memory of each."""
    environment = describe_environment()
    costs: list[KeepingCost] = []

    def measure(progress: Progress) -> None:
        costs.append(measure_keeping(num_requests, progress))

    interrupted = run_here(measure)
    cost = costs[0] if costs else None
    if cost is not None:
        out.print(keeping_table(cost))
    body = {"keeping": cost.to_json() if cost is not None else None}
    write_json(json_out, environment, body)
    write_page(report_out, lambda: keeping_page(cost), environment, body, interrupted)
    finish(interrupted)
