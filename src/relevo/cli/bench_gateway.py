"""`relevo bench gateway`: parses argv, measures, prints the table, writes JSON."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from relevo.bench.environment import describe_environment
from relevo.bench.gateway.pictures import gateway_page
from relevo.bench.gateway.run import (
    GatewayCostOptions,
    PathCost,
    gateway_cost_table,
    measure_gateway_cost,
    ways_json,
)
from relevo.bench.stamp import stamped
from relevo.cli.bench_terminal import JsonOut, Seed, finish, out, run, write_json, write_page
from relevo.cli.quiet import Quiet
from relevo.cli.report_file import ReportOut


def gateway(
    num_streams: Annotated[int, typer.Option(min=1, help="Concurrent streams.")] = 64,
    prompt_len: Annotated[int, typer.Option(min=1, help="Prompt tokens of each.")] = 64,
    output_len: Annotated[int, typer.Option(min=2, help="Output tokens of each.")] = 200,
    step_s: Annotated[
        float, typer.Option(min=0.0, help="Seconds per step of the engine, which computes nothing.")
    ] = 0.05,
    rounds: Annotated[int, typer.Option(min=1, help="Turns of every way: A B A B.")] = 3,
    proxy: Annotated[
        list[str] | None, typer.Option(help="NAME='command with {port} and {upstream}' of another proxy; repeat.")
    ] = None,
    log_dir: Annotated[Path | None, typer.Option(help="Server logs. Default: a temporary folder.")] = None,
    seed: Seed = 0,
    json_out: JsonOut = None,
    report_out: ReportOut = None,
    quiet: Quiet = False,
) -> None:
    """Latency and CPU per token that the gateway adds to a worker, and that proxies add to the gateway."""
    environment = describe_environment()
    proxies = dict(map(_named_command, proxy or ()))
    with tempfile.TemporaryDirectory(prefix="relevo-bench-") as folder:
        options = GatewayCostOptions(
            num_streams=num_streams,
            prompt_len=prompt_len,
            output_len=output_len,
            step_s=step_s,
            rounds=rounds,
            proxies=proxies,
            log_dir=log_dir or Path(folder),
            seed=seed,
        )
        costs: list[PathCost] = []
        interrupted = run(lambda progress: measure_gateway_cost(options, costs, progress))
        out.print(gateway_cost_table(costs))
    told = {"num_streams": num_streams, "step_s": step_s, "ways": ways_json(costs)}
    body = stamped("gateway", told, interrupted=interrupted)
    write_json(json_out, environment, body)
    write_page(report_out, lambda: gateway_page(costs), environment, body, interrupted)
    finish(interrupted, failed=any(cost.num_failed for cost in costs))


def _named_command(entry: str) -> tuple[str, str]:
    name, equals, command = entry.partition("=")
    if not equals or not name or not command:
        raise typer.BadParameter(f"{entry!r} is not NAME=COMMAND", param_hint="--proxy")
    return name, command
