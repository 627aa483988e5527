"""`relevo bench planner`: parses argv, runs the day, prints the table, writes JSON. Needs no server."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from relevo.bench.environment import describe_environment
from relevo.cli.bench_terminal import JsonOut, Seed, finish, friendly, note, out, run_here, write_json, write_page
from relevo.cli.quiet import Quiet
from relevo.cli.report_file import ReportOut
from relevo.core.errors import SettingsError
from relevo.sim.day.machine import MACHINES
from relevo.sim.day.report import DayReport, day_page, day_sentence, day_table, report_day
from relevo.sim.day.run import Day
from relevo.sim.day.traffic import Kinds, drawn_kinds, trace_kinds
from relevo.sim.day.workloads import FiveWorkloads
from relevo.telemetry.progress import Progress

File = Path | None


class TrafficKind(StrEnum):
    DAY = "day"
    WORKLOADS = "workloads"


class MachineName(StrEnum):
    SIXTEEN_CORES = "sixteen-cores"
    TWO_CORES = "two-cores"


def planner(
    code: Annotated[File, typer.Option(help="Trace with long prompts and short answers. Default: drawn.")] = None,
    conversation: Annotated[File, typer.Option(help="Trace with long answers; give both or none.")] = None,
    traffic: Annotated[
        TrafficKind, typer.Option(help="A day of code and conversation, or the five of `bench workloads` in sequence.")
    ] = TrafficKind.DAY,
    rules: Annotated[str, typer.Option(help="Which rules, for example planner,1p1d. Default: all.")] = "",
    machine: Annotated[
        MachineName, typer.Option(help="Of the five workloads: two workers of eight cores each, or of one.")
    ] = MachineName.SIXTEEN_CORES,
    phase_s: Annotated[float, typer.Option(min=1.0, help="Seconds of each of the five workloads.")] = 120.0,
    seed: Seed = 0,
    json_out: JsonOut = None,
    report_out: ReportOut = None,
    quiet: Quiet = False,
) -> None:
    """The planner on simulated traffic that changes, against modes that never change and a threshold."""
    day = friendly(lambda: _day(traffic, machine, code, conversation, phase_s, seed))
    chosen = friendly(lambda: rules_of(rules, day.rules))
    environment = describe_environment()
    reports: list[DayReport] = []

    def work(progress: Progress) -> None:
        progress.begin("days", total=len(chosen))
        for rule in chosen:
            progress.rename(f"a day under {rule}")
            reports.append(report_day(day.run(rule, progress.look), day.hours, day.slo))
            progress.advance()
        progress.done()

    interrupted = run_here(work)
    out.print(day_table(reports))
    note(day_sentence(reports))
    body = {
        "traffic": traffic.value,
        "lengths": _source(day),
        "slo": {"ttft_s": day.slo.ttft_s, "itl_s": day.slo.itl_s},
        "death_at_s": day.death_at_s if isinstance(day, Day) else None,
        "requests_per_s": {} if isinstance(day, Day) else day.rates,
        "reports": [report.to_json() for report in reports],
    }
    write_json(json_out, environment, body)
    write_page(report_out, lambda: day_page(reports, _source(day)), environment, body, interrupted)
    finish(interrupted)


def _day(
    traffic: TrafficKind, machine: MachineName, code: File, conversation: File, phase_s: float, seed: int
) -> Day | FiveWorkloads:
    if traffic is TrafficKind.DAY:
        if machine is not MachineName.SIXTEEN_CORES:
            raise SettingsError(f"--machine {machine} is of the five workloads; write --traffic workloads, too")
        return Day(kinds=kinds_of(code, conversation, seed), seed=seed)
    if code is not None or conversation is not None:
        raise SettingsError("--code and --conversation are of a day; leave them out with --traffic workloads")
    chosen = MACHINES[machine]
    return FiveWorkloads(phase_s=phase_s, machine=chosen, scale=chosen.scale, seed=seed)


def _source(day: Day | FiveWorkloads) -> str:
    return day.kinds.source if isinstance(day, Day) else "the five workloads in sequence"


def kinds_of(code: File, conversation: File, seed: int) -> Kinds:
    if code is None and conversation is None:
        return drawn_kinds(seed)
    if code is None or conversation is None:
        raise SettingsError("--code and --conversation belong together; give both traces, or none")
    return trace_kinds(code, conversation)


def rules_of(text: str, known: tuple[str, ...]) -> tuple[str, ...]:
    chosen = tuple(part.strip() for part in text.split(",")) if text else known
    for rule in chosen:
        if rule not in known:
            raise SettingsError(f"--rules: {rule!r} is not known; use some of {', '.join(known)}")
    return chosen
