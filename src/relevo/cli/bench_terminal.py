"""What bench commands share at the terminal: consoles, progress, notes, a sentence for a mistake, JSON, statuses."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeVar

import typer
from rich.console import Console

from relevo.bench.html.page import Report
from relevo.build.event_loop import run_until_complete
from relevo.cli.interrupts import interruptible
from relevo.cli.report_file import write_report
from relevo.core.errors import RelevoError
from relevo.telemetry.progress import Progress, shown, ticking
from relevo.workload.lengths import Lengths, parse_lengths

T = TypeVar("T")

EXIT_OPERATOR_ERROR = 2
EXIT_INTERRUPTED = 130

out = Console(width=None if sys.stdout.isatty() else 160)  # a file or pipe has no width: cut nothing
err = Console(stderr=True)

Seed = Annotated[int, typer.Option(help="Same seed, same prompts, lengths and arrivals.")]


JsonOut = Annotated[Path | None, typer.Option("--json", help="Write every record and the environment to this file.")]


def run(work: Callable[[Progress], Coroutine[Any, Any, None]]) -> bool:
    """Run to the end; True if Ctrl-C or SIGTERM ended it early. Either way servers that it started are ended."""

    async def told(progress: Progress) -> None:
        async with ticking(progress):
            await work(progress)

    return _run(lambda progress: run_until_complete(told(progress)))


def run_here(work: Callable[[Progress], None]) -> bool:
    """As `run`, for work that waits for nothing."""

    def heard(progress: Progress) -> None:
        with interruptible():
            work(progress)

    return _run(heard)


def _run(work: Callable[[Progress], None]) -> bool:
    def told() -> None:
        with shown() as progress:
            work(progress)

    try:
        with _signals():
            friendly(told)
    except KeyboardInterrupt:
        return True
    return False


@contextmanager
def _signals() -> Iterator[None]:
    """SIGTERM is Ctrl-C, and Ctrl-C is always heard."""
    before = signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    before_int = signal.getsignal(signal.SIGINT)
    if before_int is signal.SIG_IGN:  # as a shell leaves it for what runs in the background
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
        signal.signal(signal.SIGINT, before_int)


def friendly(work: Callable[[], T]) -> T:
    try:
        return work()
    except RelevoError as error:
        fail(error.message)
    except ExceptionGroup as group:
        expected, unexpected = group.split(RelevoError)
        if expected is None or unexpected is not None:
            raise
        fail(_first_message(expected))


def _first_message(group: BaseException) -> str:
    while isinstance(group, BaseExceptionGroup):
        group = group.exceptions[0]
    return str(group)


def fail(message: str) -> NoReturn:
    err.print(f"relevo bench: {message}", markup=False, highlight=False, soft_wrap=True)
    raise typer.Exit(EXIT_OPERATOR_ERROR)


def note(message: str) -> None:
    err.print(f"note: {message}", markup=False, highlight=False, soft_wrap=True)


def finish(interrupted: bool, failed: bool = False) -> None:
    if interrupted:
        note("interrupted: the numbers above cover what had happened until then")
        raise typer.Exit(EXIT_INTERRUPTED)
    if failed:
        raise typer.Exit(1)


def write_json(path: Path | None, environment: dict[str, Any], body: dict[str, Any]) -> None:
    if path is None:
        return
    try:
        path.write_text(json.dumps({"environment": environment, **body}, indent=1) + "\n")
    except OSError as error:
        fail(f"cannot write {path}: {error}")
    note(f"wrote {path}")


def write_page(
    path: Path | None,
    make: Callable[[], Report],
    environment: Mapping[str, Any],
    body: Mapping[str, Any],
    interrupted: bool = False,
    notes: Sequence[str] = (),
) -> None:
    """The report that was asked for, if one was. `notes`: what a reader has to know besides, as it was printed."""

    def with_notes() -> Report:
        made = make()
        return replace(made, notes=[*made.notes, *notes])

    partial = "it was interrupted, and covers what had happened until then" if interrupted else ""
    if friendly(lambda: write_report(path, with_notes, environment, body, partial=partial)):
        note(f"wrote {path}")


def integers(text: str, option: str) -> list[int]:
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < 1:
        raise typer.BadParameter(
            f"{text!r} is not a list of token counts; write 128,512 for example", param_hint=option
        )
    return numbers


def lengths(text: str) -> Lengths:
    try:
        return parse_lengths(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def named_url(entry: str) -> tuple[str, str]:
    name, equals, url = entry.partition("=")
    if not equals or not name or not url:
        raise typer.BadParameter(f"{entry!r} is not NAME=URL; write unified-256=http://127.0.0.1:8001 for example")
    return name, url
