"""`relevo bench frontier`: parses argv, runs what is missing, prints the tables, writes JSON and a report."""

from __future__ import annotations

from typing import Annotated

import typer

from relevo.bench.frontier.pictures import frontier_page, frontier_sentence
from relevo.bench.frontier.report import frontier_tables
from relevo.bench.frontier.run import FrontierOptions, compare_frontier, read_report
from relevo.cli.bench_arms import (
    AnswerScale,
    CapacityArms,
    CapacityClients,
    CapacityS,
    Folder,
    LogDir,
    MaxMinutes,
    PromptScale,
    Rounds,
    ServeArgs,
    ServedModel,
    SloItl,
    SloTtft,
    arms_plan,
    measure,
    slices_of,
    slo_of,
)
from relevo.cli.bench_terminal import (
    JsonOut,
    Seed,
    friendly,
    integers,
)
from relevo.cli.quiet import Quiet
from relevo.cli.report_file import ReportOut
from relevo.workload.open_loop import Scale

_UNIFIED = "unified-128,unified-256,unified-512,unified-2048"


def frontier(
    folder: Folder,
    model: ServedModel = None,
    arms: Annotated[
        str, typer.Option(help="Ways to serve, one after the other.")
    ] = f"{_UNIFIED},1p1d,hybrid,hybrid-1:3,auto",
    loads: Annotated[str, typer.Option(help="Percents of what the best unified server sustains.")] = "60,75,90",
    load_s: Annotated[float, typer.Option(min=1.0, help="Seconds of each load.")] = 60.0,
    settle_s: Annotated[float, typer.Option(min=0.0, help="Before each load, at that load; not counted.")] = 10.0,
    rounds: Rounds = 1,
    prompt_scale: PromptScale = 0.25,
    answer_scale: AnswerScale = 0.25,
    slo_ttft_ms: SloTtft = 2000.0,
    slo_itl_ms: SloItl = 50.0,
    capacity_arms: CapacityArms = "unified-512,unified-2048",
    capacity_s: CapacityS = 20.0,
    capacity_clients: CapacityClients = 8,
    serve_args: ServeArgs = "",
    max_minutes: MaxMinutes = None,
    log_dir: LogDir = None,
    seed: Seed = 0,
    json_out: JsonOut = None,
    report_out: ReportOut = None,
    quiet: Quiet = False,
) -> None:
    """Agent traffic by mode and chunk size: gaps between tokens against first tokens, and the front of both."""
    slo = slo_of(slo_ttft_ms, slo_itl_ms)
    plan = friendly(
        lambda: arms_plan(
            model=model,
            arms=arms,
            capacity_arms=capacity_arms,
            rounds=rounds,
            serve_args=serve_args,
            slo=slo,
            scale=Scale(prompt_scale, answer_scale),
            capacity_clients=capacity_clients,
            capacity_s=capacity_s,
            seed=seed,
            log_dir=log_dir,
        )
    )
    percents = integers(loads, "--loads")
    options = FrontierOptions(plan=plan, percents=percents, load_s=load_s, settle_s=settle_s)
    friendly(options.check)
    measure(
        slices_of(folder, options.to_json(), max_minutes),
        lambda slices, progress: compare_frontier(options, slices, progress),
        lambda slices: read_report(options, slices),
        lambda report: (frontier_tables(report), frontier_sentence(report)),
        frontier_page,
        json_out=json_out,
        report_out=report_out,
    )
