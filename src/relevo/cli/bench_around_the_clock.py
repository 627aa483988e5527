"""`relevo bench around-the-clock`: parses argv, runs a day on a cluster that gives workers, prints the table."""

from __future__ import annotations

from typing import Annotated

import typer

from relevo.bench.environment import describe_environment
from relevo.cli.bench_planner import File, kinds_of, rules_of
from relevo.cli.bench_terminal import JsonOut, Seed, finish, friendly, note, out, run_here, write_json
from relevo.cli.quiet import Quiet
from relevo.sim.day.around_the_clock import AroundTheClock
from relevo.sim.day.clock_report import ClockReport, clock_sentence, clock_table, report_clock
from relevo.telemetry.progress import Progress


def around_the_clock(
    code: Annotated[File, typer.Option(help="Trace with long prompts and short answers. Default: drawn.")] = None,
    conversation: Annotated[File, typer.Option(help="Trace with long answers; give both or none.")] = None,
    rules: Annotated[
        str,
        typer.Option(
            help="Which rules, for example planner,reactive,3u,1p2d. Default: of 2 to 6 workers replicas and a split."
        ),
    ] = "",
    hour_s: Annotated[
        float, typer.Option(min=1.0, max=3600.0, help="Seconds of an hour: all else takes what it takes.")
    ] = 300.0,
    start_s: Annotated[
        float, typer.Option(min=1.0, max=3600.0, help="Seconds from an order, or a death, until a worker serves.")
    ] = 20.0,
    seed: Seed = 0,
    json_out: JsonOut = None,
    quiet: Quiet = False,
) -> None:
    """A simulated day of 24 hours with a death and a tenfold burst: targets met, and core-hours paid, by rule."""
    kinds = friendly(lambda: kinds_of(code, conversation, seed))
    day = AroundTheClock(kinds=kinds, hour_s=hour_s, start_s=start_s, seed=seed)
    chosen = friendly(lambda: rules_of(rules, day.rules)) if rules else day.usual_rules
    environment = describe_environment()
    reports: list[ClockReport] = []

    def work(progress: Progress) -> None:
        progress.begin("days", total=len(chosen))
        for rule in chosen:
            progress.rename(f"a day under {rule}")
            reports.append(report_clock(day.run(rule, progress.look), hour_s, day.slo))
            progress.advance()
        progress.done()

    interrupted = run_here(work)
    out.print(clock_table(reports))
    note(clock_sentence(reports))
    body = {
        "lengths": day.kinds.source,
        "hour_s": hour_s,
        "start_s": start_s,
        "slo": {"ttft_s": day.slo.ttft_s, "itl_s": day.slo.itl_s},
        "reports": [report.to_json() for report in reports],
    }
    write_json(json_out, environment, body)
    finish(interrupted)
