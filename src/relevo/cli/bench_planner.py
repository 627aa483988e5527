"""`relevo bench planner`: parses argv, runs the day, prints the table, writes JSON. Needs no server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from relevo.bench.environment import describe_environment
from relevo.cli.bench_terminal import JsonOut, Seed, finish, friendly, note, out, run_here, write_json, write_page
from relevo.cli.quiet import Quiet
from relevo.cli.report_file import ReportOut
from relevo.core.errors import SettingsError
from relevo.sim.day.report import DayReport, day_page, day_sentence, day_table, report_day
from relevo.sim.day.run import Day
from relevo.sim.day.traffic import Kinds, drawn_kinds, trace_kinds
from relevo.telemetry.progress import Progress

File = Path | None


def planner(
    code: Annotated[File, typer.Option(help="Trace with long prompts and short answers. Default: drawn.")] = None,
    conversation: Annotated[File, typer.Option(help="Trace with long answers; give both or none.")] = None,
    rules: Annotated[str, typer.Option(help="Which rules, for example planner,1p1d. Default: all.")] = "",
    seed: Seed = 0,
    json_out: JsonOut = None,
    report_out: ReportOut = None,
    quiet: Quiet = False,
) -> None:
    """The planner on a simulated day of changing traffic, against modes that never change and a threshold."""
    day = Day(kinds=friendly(lambda: kinds_of(code, conversation, seed)), seed=seed)
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
        "lengths": day.kinds.source,
        "slo": {"ttft_s": day.slo.ttft_s, "itl_s": day.slo.itl_s},
        "death_at_s": day.death_at_s,
        "reports": [report.to_json() for report in reports],
    }
    write_json(json_out, environment, body)
    write_page(report_out, lambda: day_page(reports, day.kinds.source), environment, body, interrupted)
    finish(interrupted)


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
