"""`relevo bench console`: parses argv, measures, prints the table, writes JSON."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from relevo.bench.console.run import ConsoleCost, ConsoleCostOptions, console_cost_table, measure_console_cost
from relevo.bench.environment import describe_environment
from relevo.cli.bench_terminal import JsonOut, finish, out, run, write_json
from relevo.cli.quiet import Quiet


def console(
    num_viewers: Annotated[int, typer.Option(min=1, max=1000, help="Open streams of the state.")] = 500,
    num_requests: Annotated[int, typer.Option(min=0, help="Answers under way all the time.")] = 16,
    seconds: Annotated[float, typer.Option(min=1.0, help="Of each turn.")] = 20.0,
    rounds: Annotated[int, typer.Option(min=1, help="Turns without viewers and with them: A B A B.")] = 2,
    log_dir: Annotated[Path | None, typer.Option(help="Server logs. Default: a temporary folder.")] = None,
    json_out: JsonOut = None,
    quiet: Quiet = False,
) -> None:
    """Processor time that pages of the console, or `relevo top`, cost the gateway while they are open."""
    environment = describe_environment()
    with tempfile.TemporaryDirectory(prefix="relevo-bench-") as folder:
        options = ConsoleCostOptions(
            num_viewers=num_viewers,
            num_requests=num_requests,
            seconds=seconds,
            rounds=rounds,
            log_dir=log_dir or Path(folder),
        )
        costs: list[ConsoleCost] = []
        interrupted = run(lambda progress: measure_console_cost(options, costs, progress))
        out.print(console_cost_table(costs))
    write_json(json_out, environment, {"turns": [cost.to_json() for cost in costs]})
    finish(interrupted, failed=any(cost.num_broken for cost in costs))
