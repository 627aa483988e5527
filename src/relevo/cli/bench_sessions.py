"""`relevo bench sessions`: parses argv, replays, prints the table, writes JSON and a report."""

from __future__ import annotations

import random
import shlex
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from relevo.bench.environment import describe_environment
from relevo.bench.sessions.pictures import sessions_page
from relevo.bench.sessions.report import SessionsReport, sessions_table
from relevo.bench.sessions.run import WITH_HEADER, SessionsOptions, compare_variants
from relevo.cli.bench_terminal import JsonOut, Seed, finish, friendly, out, run, write_json, write_page
from relevo.cli.quiet import Quiet
from relevo.cli.report_file import ReportOut
from relevo.core.errors import SettingsError
from relevo.policy.routing.router import RoutingPolicy
from relevo.telemetry.progress import Progress
from relevo.workload.lengths import Lengths, parse_lengths
from relevo.workload.sessions import Session, SessionShape, make_sessions, read_sessions

VARIANTS = "round_robin,prefix_only,ttft,ttft+header"


def sessions(
    model: Annotated[str, typer.Argument(help="What `relevo serve` is given.")] = "fake",
    url: Annotated[str | None, typer.Option(help="A running server; replaces starting one per variant.")] = None,
    serve_args: Annotated[str, typer.Option(help="Flags for every server, such as '--topology 2p1d'.")] = (
        "--topology 2p1d --kv-transport tcp"
    ),
    variants: Annotated[str, typer.Option(help="Routing policies; +header: clients name their sessions.")] = VARIANTS,
    trace: Annotated[
        list[Path] | None, typer.Option(help="Recorded sessions, JSON lines or a folder of them; repeat.")
    ] = None,
    num_sessions: Annotated[int, typer.Option(min=1, help="Made-up sessions; with --trace: at most.")] = 50,
    turns: Annotated[str, typer.Option(help="Turns per made-up session: 8, 4-12 or lognormal:8,1.5.")] = "4-12",
    system_len: Annotated[str, typer.Option(help="Tokens that sessions of a group share.")] = "1000",
    turn_len: Annotated[str, typer.Option(help="Tokens each turn adds.")] = "lognormal:200,2.0",
    output_len: Annotated[str, typer.Option(help="Tokens of an answer.")] = "lognormal:50,2.0",
    num_groups: Annotated[int, typer.Option(min=1, help="Different system prompts.")] = 4,
    gap_s: Annotated[float, typer.Option(min=0, help="Mean time between turns of made-up sessions.")] = 0.2,
    max_input_len: Annotated[int | None, typer.Option(help="Leave longer turns of --trace out.")] = None,
    max_output_len: Annotated[int, typer.Option(min=1, help="Cut answers to so many tokens.")] = 16,
    gap_scale: Annotated[float, typer.Option(min=0, help="Recorded gaps times this.")] = 1.0,
    max_gap_s: Annotated[float, typer.Option(min=0, help="No gap is longer.")] = 1.0,
    concurrency: Annotated[int, typer.Option(min=1, help="Sessions at a time.")] = 8,
    rounds: Annotated[int, typer.Option(min=1, help="Turns of every variant: A B A B.")] = 1,
    api_key: Annotated[str | None, typer.Option(envvar="OPENAI_API_KEY", help="Sent as Bearer token.")] = None,
    log_dir: Annotated[Path | None, typer.Option(help="Server logs. Default: a temporary folder.")] = None,
    seed: Seed = 0,
    json_out: JsonOut = None,
    report_out: ReportOut = None,
    quiet: Quiet = False,
) -> None:
    """Multi-turn sessions under several routing policies, in turns: hit ratio, TTFT, load per worker."""
    shape = friendly(
        lambda: SessionShape(
            num_turns=_lengths(turns),
            system_tokens=_lengths(system_len),
            turn_tokens=_lengths(turn_len),
            output_tokens=_lengths(output_len),
            num_groups=num_groups,
            mean_gap_s=gap_s,
        )
    )
    replayed = friendly(
        lambda: (
            _recorded(trace, max_input_len)[:num_sessions]
            if trace
            else make_sessions(num_sessions, shape, random.Random(seed))
        )
    )
    options = SessionsOptions(
        model=model,
        variants=friendly(lambda: _variants(variants)),
        serve_flags=tuple(shlex.split(serve_args)),
        url=url,
        concurrency=concurrency,
        rounds=rounds,
        gap_scale=gap_scale,
        max_gap_s=max_gap_s,
        max_output_tokens=max_output_len,
        api_key=api_key,
        log_dir=log_dir or Path(tempfile.mkdtemp(prefix="relevo-bench-")),
    )
    num_turns = sum(len(session.turns) for session in replayed)
    num_tokens = sum(session.num_input_tokens for session in replayed)
    words = f"{len(replayed)} sessions, {num_turns} turns, {num_tokens:,} input tokens, {concurrency} at a time"
    environment = describe_environment()
    report = SessionsReport()

    async def compare(progress: Progress) -> None:
        progress.say(words)
        await compare_variants(options, replayed, report, progress)

    interrupted = run(compare)
    out.print(sessions_table(report))
    workload = {"sessions": len(replayed), "turns": num_turns, "input_tokens": num_tokens, "concurrency": concurrency}
    body = {"workload": workload, "report": report.to_json()}
    write_json(json_out, environment, body)
    write_page(report_out, lambda: sessions_page(report, words), environment, body, interrupted)
    finish(interrupted, failed=not any(s.num_completed for s in report.summaries()))


def _recorded(paths: list[Path], max_input_len: int | None) -> list[Session]:
    def lines() -> Iterator[str]:
        for path in paths:
            for file in sorted(path.glob("*.jsonl")) if path.is_dir() else [path]:
                with file.open(encoding="utf-8") as handle:
                    yield from handle

    try:
        return read_sessions(lines(), max_input_len)
    except (OSError, ValueError) as error:
        raise SettingsError(f"cannot read the sessions: {error}") from error


def _variants(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    known = [policy.value for policy in RoutingPolicy]
    for name in names:
        if name.removesuffix(WITH_HEADER) not in known:
            raise SettingsError(f"{name!r} is no routing policy; use {', '.join(known)}, each with or without +header")
    return names


def _lengths(text: str) -> Lengths:
    try:
        return parse_lengths(text)
    except ValueError as error:
        raise SettingsError(str(error)) from error
