"""`relevo bench overload`: parses argv, loads, prints the table, writes JSON."""

from __future__ import annotations

from typing import Annotated

import typer

from relevo.bench.environment import describe_environment
from relevo.bench.overload.pictures import overload_page
from relevo.bench.overload.report import overload_table
from relevo.bench.overload.run import OverloadOptions, OverloadTest
from relevo.bench.records import Endpoint
from relevo.bench.serve.report import LATE_GENERATOR_S
from relevo.cli.bench_terminal import JsonOut, Seed, finish, friendly, integers, note, out, run, write_json, write_page
from relevo.cli.quiet import Quiet
from relevo.cli.report_file import ReportOut
from relevo.core.errors import SettingsError
from relevo.telemetry.latency import Slo
from relevo.workload.lengths import Lengths, parse_lengths


def overload(
    url: Annotated[str, typer.Argument(help="The server, for example http://127.0.0.1:8000.")],
    multiples: Annotated[str, typer.Option(help="Loads, as multiples of the capacity.")] = "1,2,4",
    duration_s: Annotated[float, typer.Option(min=0.5, help="Seconds of each load.")] = 60.0,
    recovery_s: Annotated[
        float, typer.Option(min=0.5, help="Seconds of 0.8 times the capacity after it, and before.")
    ] = 10.0,
    capacity: Annotated[float | None, typer.Option(help="Requests per second. Default: measured.")] = None,
    capacity_clients: Annotated[int, typer.Option(min=1, help="Clients that keep it busy meanwhile.")] = 64,
    capacity_s: Annotated[float, typer.Option(min=0.5, help="Seconds of that measurement.")] = 15.0,
    input_len: Annotated[str, typer.Option(help="Prompt tokens: 512, 128-1024 or lognormal:600,2.0.")] = "64-256",
    output_len: Annotated[str, typer.Option(help="Output tokens, written the same way.")] = "16-48",
    slo_ttft_ms: Annotated[float, typer.Option(min=1.0, help="Goodput: longest TTFT.")] = 2000.0,
    slo_itl_ms: Annotated[float | None, typer.Option(help="Goodput: longest p90 of a request's ITL.")] = None,
    tell_slo: Annotated[bool, typer.Option(help="Send the TTFT objective as x-llm-d-slo-ttft-ms.")] = False,
    pids: Annotated[str, typer.Option(help="Processes whose memory is watched, for example 4711,4712.")] = "",
    endpoint: Annotated[Endpoint, typer.Option(help="chat sends text, completions token ids.")] = Endpoint.COMPLETIONS,
    model: Annotated[str | None, typer.Option(help="Served model to ask for. Default: the first.")] = None,
    api_key: Annotated[str | None, typer.Option(envvar="OPENAI_API_KEY", help="Sent as Bearer token.")] = None,
    seed: Seed = 0,
    json_out: JsonOut = None,
    report_out: ReportOut = None,
    quiet: Quiet = False,
) -> None:
    """Goodput, rejections and recovery of URL under multiples of its capacity, open loop."""
    options = OverloadOptions(
        url=url,
        model=model,
        api_key=api_key,
        endpoint=endpoint,
        seed=seed,
        input_lengths=friendly(lambda: _lengths(input_len)),
        output_lengths=friendly(lambda: _lengths(output_len)),
        multiples=friendly(lambda: _multiples(multiples)),
        duration_s=duration_s,
        recovery_s=recovery_s,
        capacity_per_s=capacity,
        capacity_clients=capacity_clients,
        capacity_s=capacity_s,
        slo=Slo(ttft_s=slo_ttft_ms / 1e3, itl_s=None if slo_itl_ms is None else slo_itl_ms / 1e3),
        tell_slo=tell_slo,
        pids=tuple(integers(pids, "--pids")) if pids else (),
    )
    environment = describe_environment()
    test = OverloadTest(options)
    interrupted = run(test.run)
    reports = [phase.report(options.slo) for phase in test.phases]
    out.print(overload_table(reports))
    notes: list[str] = []
    if any(report.lateness_p99_s > LATE_GENERATOR_S for report in reports):
        late_ms = max(report.lateness_p99_s for report in reports) * 1e3
        notes.append(f"requests left up to {late_ms:.0f} ms late (p99): this machine is too busy to test from")
        note(notes[0])
    body = {
        "model": test.model,
        "capacity_per_s": test.capacity_per_s,
        "slo": {"ttft_s": options.slo.ttft_s, "itl_s": options.slo.itl_s},
        "reports": [report.to_json() for report in reports],
        "phases": [[record.to_json(phase.start_ns) for record in phase.records] for phase in test.phases],
    }
    write_json(json_out, environment, body)
    write_page(
        report_out,
        lambda: overload_page(test.model, url, test.phases, reports),
        environment,
        body,
        interrupted,
        notes,
    )
    finish(interrupted, failed=bool(reports) and not any(report.num_completed for report in reports))


def _multiples(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise SettingsError(f"{text!r} is no list of multiples; write 1,2,4 for example") from None


def _lengths(text: str) -> Lengths:
    try:
        return parse_lengths(text)
    except ValueError as error:
        raise SettingsError(str(error)) from error
