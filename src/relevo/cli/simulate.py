"""`relevo simulate`: what a workload would meet on machines that are not there. Parses argv, composes, prints.

Nothing but the options decides what is printed and written: the same options give the same bytes.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from relevo.bench.environment import describe_environment
from relevo.bench.html.page import Report
from relevo.build.ledger import traffic_folder
from relevo.build.metering import unix_ms
from relevo.build.served_history import HistoryAsk, ServedHistory, read_history
from relevo.build.simulate import SimulateOptions, Simulation
from relevo.build.simulated_machines import ModelOptions
from relevo.build.what_if import WhatIf
from relevo.cli.bench_terminal import note, out
from relevo.cli.database import DatabaseUrl, DataDir, connect
from relevo.cli.interrupts import interruptible
from relevo.cli.quiet import Quiet
from relevo.cli.report_file import ReportOut, write_report
from relevo.core.errors import SettingsError
from relevo.sim.fleet import Machine, parse_fleet
from relevo.sim.measured import comparison_table
from relevo.sim.pictures import simulation_page
from relevo.sim.report import ReportOptions
from relevo.sim.report_tables import report_tables, workload_table
from relevo.telemetry.latency import Slo
from relevo.telemetry.progress import Progress, shown
from relevo.workload.arrivals import ArrivalKind
from relevo.workload.lengths import FixedLength, Lengths, parse_lengths
from relevo.workload.sessions import SessionShape
from relevo.workload.timing import Loop, Timing
from relevo.workload.traces.files import ReadOptions
from relevo.workload.traces.formats import TraceFormat

_MOST = 1e9  # of seconds, milliseconds, prices and rates: what is larger, or no number at all, is a mistake
_TOPOLOGY = (
    "8p8d, unified or 16u, with settings that differ: 8p8d,tp=2,decode.device=a100. Repeat to compare. Default: 1p1d."
)
_MODEL = "A config.json, a folder with one, or a hub id."
_ENGINE = "Whose measured constants steps have: vllm, sglang or trtllm. Default: efficiency 0.90 and 75 us per layer."
_STEP_COSTS = "Step times that were measured: a scrape of /metrics, or a report of `bench engine --json`."


def _number(least: float, told: str | None = None) -> Any:
    return typer.Option(min=least, max=_MOST, help=told)


def simulate(
    trace: Annotated[Path | None, typer.Option(help="Requests to replay: a trace in any known format.")] = None,
    ledger: Annotated[
        bool, typer.Option("--ledger", help="Replay what this server was asked for, as it kept that: lengths, no text.")
    ] = False,
    days: Annotated[int, typer.Option(min=1, max=3650, help="--ledger: of so many last days.")] = 1,
    ledger_model: Annotated[str | None, typer.Option(help="--ledger: requests for this served name only.")] = None,
    trace_format: Annotated[TraceFormat | None, typer.Option(help="Format of --trace. Default: by content.")] = None,
    trace_block_size: Annotated[int | None, typer.Option(min=1, help="Tokens per hash id, where unusual.")] = None,
    trace_part: Annotated[
        str | None, typer.Option(help="Of a ServeGen archive, such as reason/r1; of Relevo's file a model.")
    ] = None,
    trace_start_s: Annotated[float, typer.Option(min=0.0, help="ServeGen: begin at this time.")] = 0.0,
    trace_output_fraction: Annotated[float, typer.Option(min=0.0, max=1.0, help="Fleet CDF: share of output.")] = 0.2,
    skip_requests: Annotated[int, typer.Option(min=0, help="Leave out so many at the start of --trace.")] = 0,
    num_requests: Annotated[int | None, typer.Option(min=1, help="At most so many. Made up: 1000 by default.")] = None,
    max_request_tokens: Annotated[int | None, typer.Option(min=2, help="Leave longer requests out.")] = None,
    duration_s: Annotated[float | None, typer.Option(min=0.0, help="Nothing arrives later.")] = None,
    rate: Annotated[float | None, _number(1e-9, "Arrivals per second (of sessions, if any).")] = None,
    arrival: Annotated[ArrivalKind | None, typer.Option(help="Draw arrivals. Default: as recorded.")] = None,
    cv: Annotated[float, typer.Option(min=1e-3, max=1e4, help="Of gaps of --arrival gamma; above 1: bursts.")] = 1.0,
    speed: Annotated[float, _number(1e-9, "2: recorded times pass twice as fast.")] = 1.0,
    spread_ticks: Annotated[bool, typer.Option(help="Spread arrivals inside the ticks of a trace.")] = True,
    loop: Annotated[Loop, typer.Option(help="Whether turns wait for the answer before them.")] = Loop.RECORDED,
    num_clients: Annotated[int | None, typer.Option(min=1, help="Closed loop of so many clients.")] = None,
    prompt_tokens: Annotated[str | None, typer.Option(help="Made up: 512, 128-1024 or lognormal:600,2.")] = None,
    output_tokens: Annotated[str, typer.Option(help="Made up, written the same way.")] = "128",
    turns: Annotated[str, typer.Option(help="Made up: turns of a session; each adds --prompt-tokens.")] = "1",
    system_tokens: Annotated[str | None, typer.Option(help="Made up: a system prompt that sessions share.")] = None,
    system_prompts: Annotated[int, typer.Option(min=1, max=100_000, help="Made up: how many different ones.")] = 1,
    mean_gap_s: Annotated[float, _number(0.0, "Made up: mean pause before a later turn.")] = 0.0,
    topology: Annotated[list[str] | None, typer.Option(help=_TOPOLOGY)] = None,
    model: Annotated[str | None, typer.Option(help=_MODEL)] = None,
    device: Annotated[str, typer.Option(help="Of every worker: a100, h100, h200, b200, mi300x ...")] = "",
    engine: Annotated[str | None, typer.Option(help=_ENGINE)] = None,
    tp: Annotated[int, typer.Option(min=1, help="Tensor parallel devices of a worker.")] = 1,
    dp: Annotated[int, typer.Option(min=1, help="Attention data parallel groups of a worker.")] = 1,
    ep: Annotated[int, typer.Option(min=1, help="Expert parallel groups of a worker.")] = 1,
    pp: Annotated[int, typer.Option(min=1, help="Pipeline stages of a worker.")] = 1,
    step_costs: Annotated[Path | None, typer.Option(help=_STEP_COSTS)] = None,
    num_kv_blocks: Annotated[int | None, typer.Option(min=1, help="Of a worker. Default: what fits.")] = None,
    kv_bytes_per_token: Annotated[int | None, typer.Option(min=1, help="Default: as --model says.")] = None,
    kv_value_bytes: Annotated[float, typer.Option(min=0.25, help="Of the KV cache; 1: 8 bits.")] = 2.0,
    memory_utilization: Annotated[float, typer.Option(min=0.05, max=1.0, help="Of device memory.")] = 0.9,
    block_size: Annotated[int | None, typer.Option(min=1, help="Tokens. Default: of the trace's ids, or 16.")] = None,
    max_model_len: Annotated[int, typer.Option(min=2, help="Longest prompt and answer.")] = 131_072,
    batched_tokens: Annotated[
        int | None, typer.Option(min=1, help="Of one step of a worker. Default: 8192; with --ledger as it was.")
    ] = None,
    prefill_tokens: Annotated[
        int | None, typer.Option(min=1, help="Of one step while others decode. Default: 2048, or as it was.")
    ] = None,
    running: Annotated[
        int | None, typer.Option(min=1, help="Requests that a worker runs. Default: 256, or as it was.")
    ] = None,
    itl_target_ms: Annotated[
        float | None, _number(1e-6, "--ledger: what bounds prompts beside streams. Default: as it was.")
    ] = None,
    num_gateways: Annotated[int, typer.Option(min=1, max=64)] = 1,
    link_gb_s: Annotated[float | None, _number(1e-6, "KV out of a worker. Default: the devices' network.")] = None,
    link_latency_us: Annotated[float, _number(0.0)] = 5.0,
    slo_ttft_ms: Annotated[float | None, _number(1e-6, "Goodput: longest TTFT.")] = None,
    slo_itl_ms: Annotated[float | None, _number(1e-6, "Goodput: longest p90 of a request's ITL.")] = None,
    slo_tpot_ms: Annotated[float | None, _number(1e-6, "Goodput: longest TPOT.")] = None,
    price_per_h: Annotated[float | None, _number(0.0, "Of a device; others: decode.price=2.2.")] = None,
    warm_up_s: Annotated[float | None, _number(0.0, "Arrivals to mark. Default: a tenth of them.")] = None,
    drain_s: Annotated[float | None, _number(0.0, "Last arrivals to mark. Default: a tenth.")] = None,
    until_s: Annotated[float | None, _number(0.0, "Stop the world then; the rest is unfinished.")] = None,
    jumps: Annotated[bool, typer.Option(help="Take quiet stretches at once; changes no result.")] = True,
    seed: Annotated[int, typer.Option(min=-(2**63), max=2**63 - 1, help="Of every draw.")] = 0,
    json_out: Annotated[Path | None, typer.Option("--json", help="Write the reports to this file.")] = None,
    decision_log: Annotated[Path | None, typer.Option(help="Write who decided what, and why, line by line.")] = None,
    report_out: ReportOut = None,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    quiet: Quiet = False,
) -> None:
    """Replay a trace, or made-up load, on simulated workers: the real router, admission, schedulers and caches."""
    if ledger and (trace is not None or prompt_tokens is not None):
        raise SettingsError("--ledger replays what was served; leave --trace and --prompt-tokens out, or leave it out")
    history = _history(days, ledger_model, data_dir, database_url) if ledger else None
    given = _given(
        kv_blocks=num_kv_blocks, batched_tokens=batched_tokens, prefill_tokens=prefill_tokens, running=running
    )
    usual = replace(Machine(device=device, tp=tp, dp=dp, ep=ep, pp=pp, price=price_per_h), **given)
    options = SimulateOptions(
        trace=trace,
        history=history,
        reading=ReadOptions(
            format=trace_format,
            block_size=trace_block_size,
            skip=skip_requests,
            limit=num_requests,
            part=trace_part,
            start_s=trace_start_s,
            duration_s=duration_s or 3600.0,
            output_fraction=trace_output_fraction,
            seed=seed,
        ),
        made_up=_made_up(prompt_tokens, output_tokens, turns, system_tokens, system_prompts, mean_gap_s),
        num_requests=num_requests or 1000,
        max_request_tokens=max_request_tokens,
        timing=Timing(
            rate_per_s=rate,
            arrival=arrival,
            burstiness=cv**-2,
            speed=speed,
            spread_ticks=spread_ticks,
            loop=loop,
            num_clients=num_clients,
            duration_s=duration_s,
            seed=seed,
        ),
        fleets=tuple(parse_fleet(text, usual) for text in topology or ["1p1d"]),
        what_if=WhatIf(
            topologies=tuple(topology or ()),
            changed=given,
            itl_target_s=None if itl_target_ms is None else itl_target_ms / 1e3,
        ),
        model=ModelOptions(
            model=model,
            engine=engine,
            step_costs=step_costs,
            kv_value_bytes=kv_value_bytes,
            kv_bytes_per_token=kv_bytes_per_token,
            memory_utilization=memory_utilization,
        ),
        block_size=block_size,
        max_model_len=max_model_len,
        num_gateways=num_gateways,
        link_bytes_per_s=None if link_gb_s is None else link_gb_s * 1e9,
        link_latency_s=link_latency_us / 1e6,
        until_s=until_s,
        jumps=jumps,
        seed=seed,
        report=ReportOptions(slo=_slo(slo_ttft_ms, slo_itl_ms, slo_tpot_ms), warm_up_s=warm_up_s, drain_s=drain_s),
        decision_log=decision_log,
    )
    _run(options, json_out, report_out)


def _run(options: SimulateOptions, json_out: Path | None, report_out: Path | None) -> None:
    environment = describe_environment()
    with shown() as progress:
        progress.begin(f"reading {options.trace}" if options.trace else "making up requests")
        simulation = Simulation(options)
    out.print(workload_table(simulation.facts))
    started_s = time.monotonic()
    with shown() as progress:
        try:
            with interruptible():
                simulation.run(_requests_ended(progress), keep_samples=report_out is not None)
        except KeyboardInterrupt:
            progress.done()
            _write_report(simulation, report_out, environment, interrupted=True)
            raise
    simulated_s = sum(report.duration_s for report in simulation.reports)
    note(f"{simulated_s:,.0f} s were simulated in {time.monotonic() - started_s:,.1f} s")
    if simulation.comparison is not None and simulation.served is not None:
        out.print(comparison_table(simulation.comparison, simulation.served.label))
    out.print(report_tables(simulation.reports))
    if len(sizes := {report.num_devices for report in simulation.reports}) > 1:
        note(f"configurations of {min(sizes)} to {max(sizes)} devices: compare them per device, or by cost")
    for report in simulation.reports:
        for sentence in report.notes:
            note(f"{report.label}: {sentence}")
    if json_out is not None:
        try:
            json_out.write_text(json.dumps(simulation.to_json(), indent=1) + "\n", encoding="utf-8")
        except OSError as error:
            raise SettingsError(f"cannot write --json {json_out}: {error.strerror}") from error
    _write_report(simulation, report_out, environment)


def _write_report(
    simulation: Simulation, path: Path | None, environment: dict[str, Any], *, interrupted: bool = False
) -> None:
    """The only thing here that tells of this machine and of today."""

    def make() -> Report:
        return simulation_page(simulation.facts, simulation.reports, simulation.samples, simulation.requests)

    num_done, labels = len(simulation.reports), simulation.labels
    partial = f"it was interrupted; not simulated to the end: {', '.join(labels[num_done:])}" if interrupted else ""
    requests = {label: columns.to_json() for label, columns in simulation.requests.items()}
    body = {**simulation.to_json(), "requests": requests}
    if write_report(path, make, environment, body, partial=partial):
        note(f"wrote {path}")


def _history(days: int, model: str | None, data_dir: str | None, database_url: str | None) -> ServedHistory:
    """Raises SettingsError, StartError."""
    connection = connect(data_dir, database_url)
    try:
        ask = HistoryAsk(days=days, folder=traffic_folder(data_dir), model=model, now_ms=unix_ms())
        return read_history(ask, connection)
    finally:
        connection.close()


def _given(**numbers: int | None) -> dict[str, Any]:
    return {name: number for name, number in numbers.items() if number is not None}


def _requests_ended(progress: Progress) -> Callable[[str, int, int], None]:
    """Of one configuration after the other."""
    under_way = ""

    def tell(label: str, num_ended: int, num_requests: int) -> None:
        nonlocal under_way
        if label != under_way:
            under_way = label
            progress.begin(label, num_requests, "requests")
        progress.reach(num_ended, num_requests)

    return tell


def _made_up(
    prompt_tokens: str | None, output_tokens: str, turns: str, system_tokens: str | None, num_systems: int, gap_s: float
) -> SessionShape | None:
    if prompt_tokens is None:
        return None
    return SessionShape(
        num_turns=_lengths(turns),
        system_tokens=FixedLength(0) if system_tokens is None else _lengths(system_tokens),
        turn_tokens=_lengths(prompt_tokens),
        output_tokens=_lengths(output_tokens),
        num_groups=num_systems,
        mean_gap_s=gap_s,
    )


def _lengths(text: str) -> Lengths:
    try:
        return parse_lengths(text)
    except ValueError as error:
        raise SettingsError(str(error)) from error


def _slo(ttft_ms: float | None, itl_ms: float | None, tpot_ms: float | None) -> Slo | None:
    limits_s = [None if limit_ms is None else limit_ms / 1e3 for limit_ms in (ttft_ms, itl_ms, tpot_ms)]
    return None if limits_s == [None] * 3 else Slo(ttft_s=limits_s[0], itl_s=limits_s[1], tpot_s=limits_s[2])
