"""What `relevo bench workloads` and `relevo bench frontier` share at the terminal: options, parts, statuses."""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Annotated, Any, Protocol, TypeVar

import typer
from rich.console import RenderableType

from relevo.bench.arms.arm import arms_named
from relevo.bench.arms.run import ArmsPlan
from relevo.bench.arms.slices import Slices
from relevo.bench.environment import describe_environment
from relevo.bench.html.page import Report
from relevo.cli.bench_terminal import finish, friendly, note, out, run, write_json, write_page
from relevo.telemetry.latency import Slo
from relevo.telemetry.progress import Progress
from relevo.workload.open_loop import Scale

EXIT_INCOMPLETE = 3

Folder = Annotated[Path, typer.Argument(help="Where results are kept, a part at a time; repeat the command to go on.")]
ServedModel = Annotated[str | None, typer.Argument(help="What `relevo serve` is given. Default: its own default.")]
ServeArgs = Annotated[str, typer.Option(help="Flags for every server, such as '--cores 0,1'.")]
Rounds = Annotated[int, typer.Option(help="Turns of every arm: A B, B A.")]
PromptScale = Annotated[float, typer.Option(help="Lengths of prompts, times those of a large server.")]
AnswerScale = Annotated[float, typer.Option(help="Lengths of answers, likewise.")]
SloTtft = Annotated[float, typer.Option(min=1.0, help="Target of the time to the first token.")]
SloItl = Annotated[float, typer.Option(min=1.0, help="Target of the p90 of a request's gaps between tokens.")]
CapacityS = Annotated[float, typer.Option(min=1.0, help="How long to measure what is sustained, per kind and server.")]
CapacityClients = Annotated[int, typer.Option(min=1, help="Clients that wait for their answers, for that.")]
CapacityArms = Annotated[str, typer.Option(help="Unified servers, of which the best decides what is sustained.")]
MaxMinutes = Annotated[
    float | None,
    typer.Option(min=0.1, help="Begin no part that would end later; status 3 if parts are missing. Default: no limit."),
]
LogDir = Annotated[Path | None, typer.Option(help="Server logs. Default: a temporary folder.")]


def slo_of(ttft_ms: float, itl_ms: float) -> Slo:
    return Slo(ttft_s=ttft_ms / 1e3, itl_s=itl_ms / 1e3)


def arms_plan(
    *,
    model: str | None,
    arms: str,
    capacity_arms: str,
    rounds: int,
    serve_args: str,
    slo: Slo,
    scale: Scale,
    capacity_clients: int,
    capacity_s: float,
    seed: int,
    log_dir: Path | None,
) -> ArmsPlan:
    """Raises SettingsError for one that cannot be carried out."""
    plan = ArmsPlan(
        model=model,
        arms=arms_named(arms, slo),
        capacity_arms=arms_named(capacity_arms, slo),
        rounds=rounds,
        serve_flags=tuple(shlex.split(serve_args)),
        slo=slo,
        scale=scale,
        capacity_clients=capacity_clients,
        capacity_s=capacity_s,
        seed=seed,
        log_dir=log_dir or Path(tempfile.mkdtemp(prefix="relevo-bench-")),
    )
    plan.check()
    return plan


class CountedReport(Protocol):
    """Of parts that are on disk."""

    @property
    def num_missing(self) -> int: ...

    def to_json(self) -> Any: ...


R = TypeVar("R", bound=CountedReport)


def measure(
    slices: Slices,
    compare: Callable[[Slices, Progress], Coroutine[Any, Any, None]],
    read: Callable[[Slices], R],
    show: Callable[[R], tuple[RenderableType, str]],
    page: Callable[[R], Report],
    *,
    json_out: Path | None,
    report_out: Path | None,
) -> None:
    """Measure what is missing, print tables and sentence, write. Raises typer.Exit if parts are missing still."""
    friendly(slices.open)
    environment = describe_environment()
    interrupted = run(lambda progress: compare(slices, progress))
    report = friendly(lambda: read(slices))
    tables, sentence = show(report)
    out.print(tables)
    note(sentence)
    if report.num_missing:
        note(f"{report.num_missing} parts are missing in {slices.folder}; the same command measures them")
    body = {"report": report.to_json()}
    write_json(json_out, environment, body)
    write_page(report_out, lambda: page(report), environment, body, interrupted)
    finish(interrupted)
    if report.num_missing:
        raise typer.Exit(EXIT_INCOMPLETE)


def slices_of(folder: Path, options: dict[str, Any], max_minutes: float | None) -> Slices:
    return Slices(folder, options, None if max_minutes is None else 60 * max_minutes)
