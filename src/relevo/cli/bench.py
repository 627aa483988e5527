"""`relevo bench ...`: load tests and measurements. Parses argv, calls `relevo.bench`, prints tables, writes JSON.

Mistakes of the operator (wrong URL, key, model or options) are one sentence and exit status 2, never a traceback.
Ctrl-C prints what was measured so far and exits with status 130.
"""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from relevo.bench.environment import describe_environment
from relevo.bench.handoff.pictures import handoff_page
from relevo.bench.handoff.run import HandoffCost, HandoffOptions, handoff_table, measure_handoffs
from relevo.bench.interference.phase import PhaseOptions
from relevo.bench.interference.pictures import interference_page
from relevo.bench.interference.report import InterferenceReport, interference_tables
from relevo.bench.interference.run import InterferenceOptions, compare_topologies
from relevo.bench.records import Endpoint
from relevo.bench.serve.pictures import load_page
from relevo.bench.serve.report import LoadReport, report_load
from relevo.bench.serve.run import LoadTest, ServeOptions, TraceOptions
from relevo.bench.tables import load_tables
from relevo.bench.transport.pictures import transport_page
from relevo.bench.transport.run import TransportCost, TransportKind, measure_transport, parse_bytes, transport_table
from relevo.build.trial_nodes import trial_doors
from relevo.cli.bench_around_the_clock import around_the_clock
from relevo.cli.bench_console import console
from relevo.cli.bench_engine import engine
from relevo.cli.bench_frontier import frontier
from relevo.cli.bench_gateway import gateway
from relevo.cli.bench_openvino import openvino_server
from relevo.cli.bench_overload import overload
from relevo.cli.bench_page import page
from relevo.cli.bench_peers import peers
from relevo.cli.bench_planner import planner
from relevo.cli.bench_quality import quality
from relevo.cli.bench_record import record
from relevo.cli.bench_requests import requests
from relevo.cli.bench_roles import roles
from relevo.cli.bench_sessions import sessions
from relevo.cli.bench_soak import soak
from relevo.cli.bench_start import start
from relevo.cli.bench_terminal import (
    JsonOut,
    Seed,
    finish,
    integers,
    lengths,
    named_url,
    note,
    out,
    run,
    run_here,
    write_json,
    write_page,
)
from relevo.cli.bench_workloads import workloads
from relevo.cli.quiet import Quiet
from relevo.cli.report_file import ReportOut
from relevo.telemetry.latency import Slo
from relevo.telemetry.progress import Progress
from relevo.workload.arrivals import ArrivalKind
from relevo.workload.traces.formats import TraceFormat

app = typer.Typer(name="bench", help="Measure: load tests, interference, handoff and transport costs, peers.")
app.command()(engine)
app.command()(frontier)
app.command()(gateway)
app.command()(console)
app.command()(openvino_server)
app.command()(overload)
app.command()(page)
app.command()(peers)
app.command()(planner)
app.command()(around_the_clock)
app.command()(quality)
app.command()(record)
app.command()(requests)
app.command()(roles)
app.command()(sessions)
app.command()(soak)
app.command()(start)
app.command()(workloads)

Model = Annotated[str | None, typer.Option(help="Served model to ask for. Default: the first of /v1/models.")]
ApiKey = Annotated[str | None, typer.Option(envvar="OPENAI_API_KEY", help="Sent as Bearer token.")]
Url = Annotated[str, typer.Argument(help="The server, for example http://127.0.0.1:8000.")]


@app.command()
def serve(
    url: Url,
    request_rate: Annotated[float | None, typer.Option(help="Open loop: requests per second.")] = None,
    arrival: Annotated[ArrivalKind, typer.Option(help="Open loop: arrival process.")] = ArrivalKind.POISSON,
    burstiness: Annotated[float, typer.Option(help="Shape of --arrival gamma; below 1 comes in bursts.")] = 1.0,
    concurrency: Annotated[int | None, typer.Option(min=1, help="Closed loop: clients that wait. Default: 1.")] = None,
    num_requests: Annotated[int | None, typer.Option(min=1, help="End after so many requests. Default: 100.")] = None,
    duration_s: Annotated[float | None, typer.Option(min=0.0, help="Send no more after so many seconds.")] = None,
    input_len: Annotated[str, typer.Option(help="Prompt tokens: 512, 128-1024 or lognormal:600,2.0.")] = "512",
    output_len: Annotated[str, typer.Option(help="Output tokens (max_tokens), written the same way.")] = "128",
    trace: Annotated[Path | None, typer.Option(help="Replay lengths (and times) of this file.")] = None,
    trace_format: Annotated[TraceFormat | None, typer.Option(help="Format of --trace. Default: by content.")] = None,
    trace_speed: Annotated[float, typer.Option(min=1e-6, help="2 replays twice as fast.")] = 1.0,
    trace_spread: Annotated[bool, typer.Option(help="Spread arrivals inside the ticks of the trace.")] = False,
    trace_max_input_len: Annotated[int | None, typer.Option(help="Leave longer requests of the trace out.")] = None,
    endpoint: Annotated[Endpoint, typer.Option(help="chat sends text, completions token ids.")] = Endpoint.CHAT,
    model: Model = None,
    api_key: ApiKey = None,
    seed: Seed = 0,
    slo_ttft_ms: Annotated[float | None, typer.Option(help="Goodput: longest TTFT.")] = None,
    slo_itl_ms: Annotated[float | None, typer.Option(help="Goodput: longest p90 of a request's ITL.")] = None,
    ignore_eos: Annotated[bool, typer.Option(help="Generate exactly --output-len tokens.")] = False,
    temperature: Annotated[float, typer.Option(min=0.0)] = 0.0,
    num_warmup: Annotated[int, typer.Option(min=0, help="Unmeasured requests before the load.")] = 2,
    request_timeout_s: Annotated[float | None, typer.Option(help="Count a longer request as an error.")] = None,
    json_out: JsonOut = None,
    report_out: ReportOut = None,
    quiet: Quiet = False,
) -> None:
    """Load test URL, open loop (--request-rate, or a trace with times) or closed loop (--concurrency)."""
    ends = num_requests is not None or duration_s is not None or trace is not None
    closed = request_rate is None and trace is None
    options = ServeOptions(
        url=url,
        model=model,
        endpoint=endpoint,
        api_key=api_key,
        seed=seed,
        input_lengths=lengths(input_len),
        output_lengths=lengths(output_len),
        num_requests=num_requests if ends else 100,
        duration_s=duration_s,
        request_rate_per_s=request_rate,
        arrival=arrival,
        burstiness=burstiness,
        concurrency=concurrency or (1 if closed else None),
        trace=None
        if trace is None
        else TraceOptions(
            path=trace,
            format=trace_format,
            speed=trace_speed,
            spread=trace_spread,
            max_input_len=trace_max_input_len,
        ),
        ignore_eos=ignore_eos,
        temperature=temperature,
        num_warmup_requests=num_warmup,
        request_timeout_s=request_timeout_s,
    )
    environment = describe_environment()
    test = LoadTest(options)
    interrupted = run(test.run)
    slo = _slo(slo_ttft_ms, slo_itl_ms)
    report = report_load(test.records, slo)
    out.print(load_tables(report))
    notes = list(_doubts(test, report))
    for sentence in notes:
        note(sentence)
    body = test.to_json(report)
    write_json(json_out, environment, body)
    write_page(
        report_out, lambda: load_page(test.model, url, report, test.records, slo), environment, body, interrupted, notes
    )
    finish(interrupted, failed=report.num_requests > 0 and report.num_completed == 0)


@app.command()
def interference(
    model: Annotated[str | None, typer.Argument(help="What `relevo serve` is given. Default: its own default.")] = None,
    url: Annotated[list[str] | None, typer.Option(help="NAME=URL of a running variant; replaces starting any.")] = None,
    topology: Annotated[str, typer.Option(help="The disaggregated variant.")] = "1p1d",
    chunk_sizes: Annotated[str, typer.Option(help="Token budgets of the unified variants.")] = "64,128,256,512",
    prefill_chunk_size: Annotated[int | None, typer.Option(min=1, help="Token budget of --topology.")] = None,
    load: Annotated[float, typer.Option(help="Arrival rate as a fraction of what prefill sustains.")] = 0.6,
    request_rate: Annotated[float | None, typer.Option(help="Arrivals per second; replaces --load.")] = None,
    prompt_len: Annotated[int, typer.Option(min=1, help="Tokens of the arriving prompts.")] = 1500,
    prompt_output_len: Annotated[int, typer.Option(min=1, help="Tokens they generate; 2 or more hand off.")] = 8,
    num_streams: Annotated[int, typer.Option(min=1, help="Streams that decode all the time.")] = 4,
    stream_prompt_len: Annotated[int, typer.Option(min=1)] = 32,
    stream_output_len: Annotated[int, typer.Option(min=2, help="A stream restarts after so many tokens.")] = 1000,
    duration_s: Annotated[float, typer.Option(min=0.1, help="Window of arrivals per phase.")] = 60.0,
    rounds: Annotated[int, typer.Option(help="Turns of every variant: A B A B.")] = 2,
    num_rate_prompts: Annotated[int, typer.Option(min=1, help="Prompts to measure the prefill rate with.")] = 8,
    baseline: Annotated[bool, typer.Option(help="First measure the streams alone, half as long.")] = True,
    serve_args: Annotated[str, typer.Option(help="Flags for every started server, such as '--cores 0,1'.")] = "",
    log_dir: Annotated[Path | None, typer.Option(help="Server logs. Default: a temporary folder.")] = None,
    seed: Seed = 0,
    json_out: JsonOut = None,
    report_out: ReportOut = None,
    quiet: Quiet = False,
) -> None:
    """Compare unified serving with disaggregation: decoding streams while long prompts arrive, on the same cores."""
    options = InterferenceOptions(
        model=model,
        urls=dict(named_url(entry) for entry in url or ()),
        topology=topology,
        chunk_sizes=integers(chunk_sizes, "--chunk-sizes"),
        prefill_chunk_size=prefill_chunk_size,
        serve_flags=tuple(shlex.split(serve_args)),
        load=load,
        rate_per_s=request_rate,
        num_rate_prompts=num_rate_prompts,
        rounds=rounds,
        phase=PhaseOptions(
            num_streams=num_streams,
            stream_prompt_len=stream_prompt_len,
            stream_output_len=stream_output_len,
            prompt_len=prompt_len,
            prompt_output_len=prompt_output_len,
            duration_s=duration_s,
            baseline_s=duration_s / 2 if baseline else 0.0,
            seed=seed,
        ),
        log_dir=log_dir or Path(tempfile.mkdtemp(prefix="relevo-bench-")),
    )
    environment = describe_environment()
    report = InterferenceReport()
    interrupted = run(lambda progress: compare_topologies(options, report, progress))
    out.print(interference_tables(report))
    body = {"report": report.to_json()}
    write_json(json_out, environment, body)
    write_page(report_out, lambda: interference_page(report), environment, body, interrupted)
    finish(interrupted)


@app.command()
def handoff(
    url: Url,
    prompt_lens: Annotated[str, typer.Option(help="Prompt lengths in tokens.")] = "128,512,1500",
    num_repeats: Annotated[int, typer.Option(min=1, help="Prompts per length, one at a time.")] = 5,
    output_len: Annotated[int, typer.Option(min=2, help="Output tokens; at least 2, or nothing is handed off.")] = 4,
    model: Model = None,
    api_key: ApiKey = None,
    seed: Seed = 0,
    json_out: JsonOut = None,
    report_out: ReportOut = None,
    quiet: Quiet = False,
) -> None:
    """TTFT and the handoff's share of it on an idle running server, from its own metrics."""
    options = HandoffOptions(
        url=url,
        model=model,
        api_key=api_key,
        prompt_lens=integers(prompt_lens, "--prompt-lens"),
        num_repeats=num_repeats,
        max_tokens=output_len,
        seed=seed,
    )
    environment = describe_environment()
    costs: list[HandoffCost] = []
    interrupted = run(lambda progress: measure_handoffs(options, costs, progress))
    out.print(handoff_table(costs))
    notes = []
    if costs and not any(cost.num_handoffs for cost in costs):
        notes.append("the server counted no handoff: it is unified, or it kept these prompts local")
        note(notes[0])
    body = {"handoffs": [cost.to_json() for cost in costs]}
    write_json(json_out, environment, body)
    write_page(report_out, lambda: handoff_page(url, costs), environment, body, interrupted, notes)
    finish(interrupted)


class BenchEncryption(StrEnum):
    ON = "on"
    OFF = "off"


@app.command()
def transport(
    transport: Annotated[list[TransportKind] | None, typer.Option(help="Which ones; repeat. Default: all.")] = None,
    size: Annotated[str, typer.Option("--bytes", help="Bytes to hand over: 45MB, 64MiB.")] = "45MB",
    num_repeats: Annotated[int, typer.Option(min=1)] = 10,
    encryption: Annotated[
        BenchEncryption | None, typer.Option(help="Measure tcp as between boxes: by certificates, encrypted or not.")
    ] = None,
    streams: Annotated[int, typer.Option(min=1, max=64, help="Connections at most, between boxes.")] = 4,
    json_out: JsonOut = None,
    report_out: ReportOut = None,
    quiet: Quiet = False,
) -> None:
    """How fast KV blocks change workers over each transport, without a model."""
    environment = describe_environment()
    costs: list[TransportCost] = []

    def measure(progress: Progress) -> None:
        num_bytes = parse_bytes(size)
        with tempfile.TemporaryDirectory(prefix="relevo-bench-") as folder:
            doors = None
            if encryption is not None:
                is_on = encryption is BenchEncryption.ON
                doors = trial_doors(Path(folder), encrypts=is_on, num_streams=streams)
            for kind in transport or list(TransportKind):
                cost = measure_transport(kind, num_bytes, num_repeats, progress=progress, doors=doors)
                costs.append(cost)  # an interrupted run keeps those before

    interrupted = run_here(measure)
    out.print(transport_table(costs))
    body = {"transports": [cost.to_json() for cost in costs]}
    write_json(json_out, environment, body)
    write_page(report_out, lambda: transport_page(costs), environment, body, interrupted)
    finish(interrupted)


def _doubts(test: LoadTest, report: LoadReport) -> Iterator[str]:
    """About what was measured."""
    if not test.exact_lengths:
        yield "the server has no /tokenize: prompt lengths are about one token a word; see the server's own counts"
    if report.generator_was_late:
        late_ms = report.lateness_p99_s * 1e3
        yield f"requests left up to {late_ms:.0f} ms late (p99): this machine is too busy to test from"


def _slo(ttft_ms: float | None, itl_ms: float | None) -> Slo | None:
    if ttft_ms is None and itl_ms is None:
        return None
    return Slo(
        ttft_s=None if ttft_ms is None else ttft_ms / 1e3,
        itl_s=None if itl_ms is None else itl_ms / 1e3,
    )
