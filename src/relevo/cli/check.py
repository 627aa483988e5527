"""`relevo check URL`: parses argv, calls `relevo.check`, prints the table, writes JSON and JUnit XML.

Exit status: 0 if every MUST was met or could not be told, 1 if not, 2 for a mistake of the operator, 130 after Ctrl-C,
143 after SIGTERM.
"""

from __future__ import annotations

import asyncio
import json
import os
import platform
import signal
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console

from relevo import __version__
from relevo.check.catalogue import chosen
from relevo.check.disturber import ChaosCommand, Disturber, LocalProcesses
from relevo.check.report import (
    catalogue_table,
    exit_status,
    failure_stories,
    result_table,
    summary,
    to_json,
    to_junit,
)
from relevo.check.run import CheckOptions, CheckRun
from relevo.check.words import Result, Status
from relevo.cli.quiet import Quiet
from relevo.core.errors import RelevoError
from relevo.telemetry.progress import Progress, shown, ticking

EXIT_OPERATOR_ERROR = 2
EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 143

_out = Console(width=None if sys.stdout.isatty() else 160)  # a file or pipe has no width: cut nothing
_err = Console(stderr=True)


def check(
    url: Annotated[str | None, typer.Argument(help="The server, for example http://127.0.0.1:8000.")] = None,
    model: Annotated[
        str | None, typer.Option(help="Served model to ask for. Default: the first of /v1/models.")
    ] = None,
    api_key: Annotated[str | None, typer.Option(envvar="OPENAI_API_KEY", help="Sent as Bearer token.")] = None,
    other_api_key: Annotated[
        str | None, typer.Option(envvar="OTHER_API_KEY", help="Key of another tenant, for the group tenants.")
    ] = None,
    oracle: Annotated[str | None, typer.Option(help="URL of a server with the same weights to compare with.")] = None,
    oracle_model: Annotated[str | None, typer.Option(help="Its model. Default: the first of its /v1/models.")] = None,
    only: Annotated[list[str] | None, typer.Option(help="Ids, groups or globs (stream.*); repeat.")] = None,
    skip: Annotated[list[str] | None, typer.Option(help="Left out; written as for --only.")] = None,
    list_checks: Annotated[bool, typer.Option("--list", help="Show the checks and end.")] = False,
    processes: Annotated[
        list[str] | None,
        typer.Option(
            help="Chaos: which processes may be killed: a pid, PID/REGEX (below it) or REGEX (command lines); repeat."
        ),
    ] = None,
    chaos_command: Annotated[
        str | None, typer.Option(help="Chaos: a command that is called with list, or an action and a target.")
    ] = None,
    timeout_s: Annotated[float, typer.Option(min=0.1, help="Longest wait for one answer.")] = 120.0,
    settle_s: Annotated[float, typer.Option(min=0.0, help="How long abandoned requests may stay.")] = 5.0,
    pause_s: Annotated[float, typer.Option(min=0.0, help="Chaos: how long a process is stopped.")] = 12.0,
    seed: Annotated[int, typer.Option(help="Same seed, same moments and targets.")] = 0,
    strict: Annotated[bool, typer.Option(help="Fail for advice (SHOULD) too.")] = False,
    json_out: Annotated[Path | None, typer.Option("--json", help="Write every result to this file.")] = None,
    junit: Annotated[Path | None, typer.Option(help="Write a JUnit XML report to this file.")] = None,
    quiet: Quiet = False,
) -> None:
    """Hold any OpenAI-compatible server against the API, and its processes against kill -9, SIGSTOP and aborts."""
    try:
        checks = chosen(only or (), skip or ())
        if list_checks:
            _out.print(catalogue_table(checks))
            return
        if url is None:
            _fail("name the server to check, for example http://127.0.0.1:8000")
        if not all(key.isprintable() for key in (api_key, other_api_key) if key is not None):
            _fail("an API key has a line break or another control character in it; give it without")
        if other_api_key is not None and other_api_key == api_key:
            _fail("--other-api-key is the same as --api-key; give a key of another tenant")
        _need_writable(json_out, junit)
        options = CheckOptions(
            url=url,
            model=model,
            api_key=api_key,
            other_api_key=other_api_key,
            oracle=oracle,
            oracle_model=oracle_model,
            timeout_s=timeout_s,
            settle_s=settle_s,
            pause_s=pause_s,
            seed=seed,
            disturber=_disturber(processes or (), chaos_command),
        )
        run = CheckRun(options, checks)
    except RelevoError as error:
        _fail(error.message)
    results, ended_early, status = _run(run)
    if status == EXIT_OPERATOR_ERROR and not results:
        _fail(ended_early)
    _out.print(result_table(results))
    _out.print(failure_stories(results), soft_wrap=True)  # a command that is broken into lines is another one
    _out.print(f"{len(results)} checks: {summary(results)}", highlight=False)
    about = _about(run) | {"ended_early": ended_early or None}
    _write(json_out, json.dumps(to_json(results, about), indent=1, ensure_ascii=False).encode() + b"\n")
    _write(junit, to_junit(results, f"relevo check {url}", strict=strict))
    if ended_early:
        _err.print(f"relevo check: ended early: {ended_early}", markup=False, highlight=False, soft_wrap=True)
    status = status or exit_status(results, strict=strict)
    if status:
        raise typer.Exit(status)


def _disturber(processes: tuple[str, ...] | list[str], command: str | None) -> Disturber | None:
    if processes and command is not None:
        _fail("--processes and --chaos-command exclude each other; give one of them")
    if command is not None:
        return ChaosCommand.of(command)
    return LocalProcesses.of(processes) if processes else None


def _run(run: CheckRun) -> tuple[list[Result], str, int]:
    """The results, why there are no more ("" if these are all), and the exit status for that.

    However it ends, a check that is broken off first undoes what it did to processes.
    """
    results: list[Result] = []

    async def collect(progress: Progress) -> None:
        task = asyncio.current_task()
        assert task is not None, "a coroutine of asyncio.run is a task"
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        progress.begin(f"checking {run.options.url}", len(run.checks), "checks")
        async with ticking(progress):
            async for result in run.results():
                results.append(result)
                progress.advance()
                if result.status in (Status.FAILED, Status.ADVICE):
                    told = f"{result.status}, {result.duration_s:.1f} s: {result.got[:200]}"
                    progress.say(f"{result.check.id}: {told}")

    try:
        with shown() as progress:
            asyncio.run(collect(progress))
    except KeyboardInterrupt:
        return results, "Ctrl-C", EXIT_INTERRUPTED
    except asyncio.CancelledError:
        return results, "SIGTERM", EXIT_TERMINATED
    except RelevoError as error:
        return results, error.message, EXIT_OPERATOR_ERROR
    return results, "", 0


def _about(run: CheckRun) -> dict[str, Any]:
    facts = run.facts
    return {
        "tool": f"relevo check {__version__}",
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "url": run.options.url,
        "model": facts.model if facts else None,
        "server_version": facts.version if facts else "",
        "platform": platform.platform(),
        "seed": run.options.seed,
    }


def _need_writable(*paths: Path | None) -> None:
    """Asked before the checks: what took minutes may not be lost for a mistyped folder."""
    for path in paths:
        if path is not None and (path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK)):
            _fail(f"cannot write {path}; name a file in a folder that is there and may be written to")


def _write(path: Path | None, data: bytes) -> None:
    if path is None:
        return
    try:
        path.write_bytes(data)
    except OSError as error:
        _fail(f"cannot write {path}: {error}")


def _fail(message: str) -> NoReturn:
    _err.print(f"relevo check: {message}", markup=False, highlight=False, soft_wrap=True)
    raise typer.Exit(EXIT_OPERATOR_ERROR)
