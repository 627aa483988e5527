"""`relevo plan`: how many GPUs of what, split how. Parses argv, composes, prints.

Nothing but the options (and, with --ledger, the ledger) decides what is printed and written.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from relevo.build.capacity_plan import Planner
from relevo.build.ledger import traffic_folder
from relevo.build.metering import unix_ms
from relevo.build.plan_json import plan_json
from relevo.build.plan_options import PlanOptions, parse_rate, parse_seconds, parse_workload
from relevo.build.plan_tables import command_text, plan_table, refused_sentences, sentences, stage_table
from relevo.cli.bench_terminal import note, out
from relevo.cli.database import DatabaseUrl, DataDir, connect
from relevo.cli.default_command import WithDefault
from relevo.cli.plan_memory import memory
from relevo.cli.quiet import Quiet
from relevo.core.errors import SettingsError
from relevo.policy.perf.reshard import PAGE_TOKENS, USUAL_PAGE_TOKENS
from relevo.policy.scaling.candidates import Assumptions
from relevo.policy.scaling.inventory import parse_inventory
from relevo.policy.scaling.screen import Targets
from relevo.policy.scaling.search import Infeasible
from relevo.sim.report_tables import workload_table
from relevo.telemetry.progress import shown
from relevo.workload.traces.files import ReadOptions
from relevo.workload.traces.formats import TraceFormat

_EXIT_UNMET = 1  # infeasible, or not enough devices
_WORKLOAD = "Made up: prompt tokens, output tokens, rate and reuse: 4000,300,5/s,60%."
_DEVICES = "What can be had: 8xH100@2.9/h,16xA100@1.2/h. Without prices devices are counted."
_ENGINE = "Whose measured constants steps have: vllm, sglang or trtllm. Default: general ones, nothing is promised."


def plan(
    model: Annotated[str, typer.Option(help="A config.json, a folder with one, or a hub id. Weights are not read.")],
    devices: Annotated[str, typer.Option(help=_DEVICES)],
    slo_ttft_p90: Annotated[str, typer.Option(help="Promise: 90 % of first tokens within it: 2s or 500ms.")],
    slo_itl_p90: Annotated[str, typer.Option(help="Promise: 90 % of gaps between tokens: 50ms.")],
    trace: Annotated[Path | None, typer.Option(help="The load: a trace in any known format.")] = None,
    ledger: Annotated[
        int | None, typer.Option(min=1, max=3650, help="The load: the busiest hour of the last days' ledger.")
    ] = None,
    workload: Annotated[str | None, typer.Option(help=_WORKLOAD)] = None,
    rate: Annotated[str | None, typer.Option(help="Other than the load's own: 5/s, 300/min, 18000/h.")] = None,
    trace_format: Annotated[TraceFormat | None, typer.Option(help="Of --trace. Default: by content.")] = None,
    num_requests: Annotated[int | None, typer.Option(min=2, help="Read at most so many of --trace.")] = None,
    max_request_tokens: Annotated[int | None, typer.Option(min=2, help="Leave longer requests out.")] = None,
    mean_gap_s: Annotated[float, typer.Option(min=0.0, max=1e6, help="--workload: pause between turns.")] = 10.0,
    ledger_model: Annotated[str | None, typer.Option(help="--ledger: requests for this served name only.")] = None,
    engine: Annotated[str | None, typer.Option(help=_ENGINE)] = None,
    engine_version: Annotated[
        str | None,
        typer.Option(help="Release of --engine that will serve: of one that was not measured nothing is promised."),
    ] = None,
    start_s: Annotated[float, typer.Option(min=0.0, max=1e6, help="From ordering a worker until it serves.")] = 300.0,
    tokens_per_step: Annotated[
        float, typer.Option(min=1.0, max=32.0, help="Speculation: tokens of a row in a step, its own included.")
    ] = 1.0,
    draft_tokens: Annotated[int, typer.Option(min=0, max=31, help="Speculation: drafted tokens of a step.")] = 0,
    cpu_cache_gb: Annotated[float, typer.Option(min=0.0, max=1e5, help="CPU memory of a worker for KV.")] = 0.0,
    link_gb_s: Annotated[
        float | None, typer.Option(min=1e-6, max=1e6, help="KV out of a worker. Default: the devices' network.")
    ] = None,
    kv_value_bytes: Annotated[float, typer.Option(min=0.25, max=8.0, help="Of the KV cache; 1: 8 bits.")] = 2.0,
    memory_utilization: Annotated[float, typer.Option(min=0.05, max=1.0, help="Of device memory.")] = 0.9,
    simulated_requests: Annotated[int, typer.Option(min=130, max=100_000, help="That count, per simulation.")] = 300,
    warm_requests: Annotated[
        int | None,
        typer.Option(min=0, max=100_000, help="Before them, that only warm caches. Default: a made-up session's life."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Of every draw.")] = 0,
    json_out: Annotated[Path | None, typer.Option("--json", help="Write the plan to this file.")] = None,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    quiet: Quiet = False,
) -> None:
    """How many GPUs of what, split how: the cheapest plan that keeps a latency promise, and why not the others."""
    if sum(source is not None for source in (trace, ledger, workload)) != 1:
        raise SettingsError(
            "say what the load is with one of --trace FILE, --ledger DAYS and --workload 4000,300,5/s,60%"
        )
    options = PlanOptions(
        model=model,
        holdings=parse_inventory(devices),
        targets=Targets(
            ttft_s=parse_seconds(slo_ttft_p90, "--slo-ttft-p90"), itl_s=parse_seconds(slo_itl_p90, "--slo-itl-p90")
        ),
        assumed=Assumptions(
            start_s=start_s,
            tokens_per_step=tokens_per_step,
            num_drafted=draft_tokens,
            cpu_cache_bytes=cpu_cache_gb * 1e9,
            link_bytes_per_s=None if link_gb_s is None else link_gb_s * 1e9,
            page_tokens=PAGE_TOKENS.get(engine or "", USUAL_PAGE_TOKENS),
            kv_value_bytes=kv_value_bytes,
            utilization=memory_utilization,
        ),
        trace=trace,
        reading=ReadOptions(format=trace_format, limit=num_requests, seed=seed),
        made_up=None if workload is None else parse_workload(workload, mean_gap_s),
        ledger_days=ledger,
        ledger_model=ledger_model,
        traffic_folder=traffic_folder(data_dir) if ledger is not None else Path(),
        rate_per_s=None if rate is None else parse_rate(rate, "--rate"),
        max_request_tokens=max_request_tokens,
        engine=engine,
        engine_version=engine_version,
        num_simulated=simulated_requests,
        num_warm=warm_requests,
        seed=seed,
    )
    connection = None if ledger is None else connect(data_dir, database_url)
    _run(Planner(options, connection, unix_ms()), json_out)


def _run(planner: Planner, json_out: Path | None) -> None:
    out.print(workload_table(planner.load.facts))
    with shown() as progress:
        progress.begin("searching")
        made = planner.plan(lambda label, count: progress.rename(f"simulating {label} ({count} done)"))
    if json_out is not None:
        _write(json_out, plan_json(made, planner))
    if isinstance(made.found, Infeasible):
        note(made.found.sentence)
        raise typer.Exit(_EXIT_UNMET)
    out.print(plan_table(made, planner))
    out.print(stage_table(made, planner))
    for sentence in (*sentences(made, planner), *refused_sentences(made.found)):
        note(sentence)
    for line in command_text(made, planner):
        out.print(line, markup=False, highlight=False, soft_wrap=True)
    if not made.is_enough:
        raise typer.Exit(_EXIT_UNMET)


def _write(path: Path, body: dict[str, Any]) -> None:
    try:
        path.write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise SettingsError(f"cannot write --json {path}: {error.strerror}") from error


app = typer.Typer(
    cls=WithDefault.of("capacity"),
    help="How many GPUs of what, split how (capacity, which is meant where no command is named), and what lies where.",
)
app.command("capacity")(plan)
app.command("memory")(memory)
