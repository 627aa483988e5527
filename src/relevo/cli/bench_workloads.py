"""`relevo bench workloads`: parses argv, runs what is missing, prints the tables, writes JSON and a report."""

from __future__ import annotations

from typing import Annotated

import typer

from relevo.bench.workloads.pictures import workloads_page, workloads_sentence
from relevo.bench.workloads.report import workloads_tables
from relevo.bench.workloads.run import KINDS, WorkloadsOptions, compare_workloads, kinds_named, read_report
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
from relevo.cli.bench_terminal import JsonOut, Seed, friendly
from relevo.cli.quiet import Quiet
from relevo.cli.report_file import ReportOut
from relevo.workload.open_loop import Scale


def workloads(
    folder: Folder,
    model: ServedModel = None,
    arms: Annotated[str, typer.Option(help="Ways to serve, one after the other.")] = "unified,1p1d,hybrid,auto",
    kinds: Annotated[str, typer.Option("--workloads", help="Kinds of traffic, in their order.")] = ",".join(KINDS),
    phase_s: Annotated[float, typer.Option(min=1.0, help="Seconds of each kind.")] = 600.0,
    load: Annotated[float, typer.Option(help="Offered, of what a unified server sustains of that kind.")] = 0.7,
    warm_up_s: Annotated[float, typer.Option(min=0.0, help="Before the first kind; not counted.")] = 10.0,
    rounds: Rounds = 1,
    prompt_scale: PromptScale = 0.2,
    answer_scale: AnswerScale = 0.4,
    slo_ttft_ms: SloTtft = 2000.0,
    slo_itl_ms: SloItl = 100.0,
    capacity_arms: CapacityArms = "unified-2048",
    capacity_s: CapacityS = 15.0,
    capacity_clients: CapacityClients = 8,
    serve_args: ServeArgs = "",
    max_minutes: MaxMinutes = None,
    log_dir: LogDir = None,
    seed: Seed = 0,
    json_out: JsonOut = None,
    report_out: ReportOut = None,
    quiet: Quiet = False,
) -> None:
    """Five workloads in sequence under `auto` and every fixed mode: goodput by phase, time to adapt, switches."""
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
    options = WorkloadsOptions(
        plan=plan, kinds=friendly(lambda: kinds_named(kinds)), load=load, phase_s=phase_s, warm_up_s=warm_up_s
    )
    friendly(options.check)
    measure(
        slices_of(folder, options.to_json(), max_minutes),
        lambda slices, progress: compare_workloads(options, slices, progress),
        lambda slices: read_report(options, slices),
        lambda report: (workloads_tables(report), workloads_sentence(report)),
        workloads_page,
        json_out=json_out,
        report_out=report_out,
    )
