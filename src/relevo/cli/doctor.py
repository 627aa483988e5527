"""`relevo doctor`: what this machine can do, what would be faster, what is missing. Needs no running server.

Exit status: 0 if nothing fails, 1 if something does.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
import textwrap
from dataclasses import asdict
from typing import Annotated, Any

import typer

from relevo.build.doctor import look
from relevo.cli.options import make_settings
from relevo.client.server import OpenAIServer
from relevo.client.visible_text import one_line
from relevo.core.errors import RelevoError, SettingsError
from relevo.policy.host.doctor import Finding, Status, findings
from relevo.policy.host.machine_facts import ServerFacts
from relevo.settings import Settings

_COLOURS = {Status.OK: "32", Status.WARN: "33", Status.FAIL: "31"}
_INDENT = 7


def doctor(
    model: Annotated[str | None, typer.Argument(help="What is to be served. Default: as for `relevo serve`.")] = None,
    host: Annotated[str | None, typer.Option(help="As for `relevo serve`.")] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="As for `relevo serve`.")] = None,
    data_dir: Annotated[str | None, typer.Option(help="As for `relevo serve`.")] = None,
    database_url: Annotated[str | None, typer.Option(help="As for `relevo serve`.")] = None,
    download_dir: Annotated[str | None, typer.Option(help="As for `relevo serve`.")] = None,
    url: Annotated[str | None, typer.Option(help="Also ask this running server for its health.")] = None,
    json_out: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Look at this machine: each row is ok, warn or fail, with the command that mends it."""
    given = {
        "model": model,
        "host": host,
        "port": port,
        "data_dir": data_dir,
        "database_url": database_url,
        "download_dir": download_dir,
    }
    given = {name: value for name, value in given.items() if value is not None}
    settings, problem = _settings(given)
    server = None if url is None else asyncio.run(_health(url))
    found = findings(look(settings, settings_problem=problem, server=server))
    has_failed = any(finding.status is Status.FAIL for finding in found)
    if json_out:
        typer.echo(json.dumps({"ok": not has_failed, "findings": [asdict(finding) for finding in found]}, indent=1))
    else:
        _print(found)
    if has_failed:
        raise typer.Exit(1)


def _settings(given: dict[str, Any]) -> tuple[Settings, str]:
    """Where a variable cannot be read, what is looked at is what would hold without any, and that is a finding."""
    try:
        return make_settings(given), ""
    except SettingsError as error:
        defaults = {name: field.default for name, field in Settings.model_fields.items()}
        return Settings.model_construct(None, **(defaults | given)), error.message


async def _health(url: str) -> ServerFacts:
    async with OpenAIServer(url) as server:
        try:
            status, body = await server.get_json("/health")
        except RelevoError as error:
            return ServerFacts(url=url, problem=error.message)
    if not isinstance(body, dict) or "status" not in body:
        return ServerFacts(
            url=url, problem=f"/health answered HTTP {status} and says no status; is it a Relevo server?"
        )
    models = body.get("models")
    return ServerFacts(
        url=url,
        status=str(body["status"]),
        reason=str(body.get("reason", "")),
        models=tuple(models) if isinstance(models, dict) else (),
    )


def _print(found: list[Finding]) -> None:
    has_colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 10_000
    for finding in found:
        mark = f"{finding.status:<{_INDENT - 1}} "
        text = one_line(f"{finding.name}: {finding.found}")
        lines = textwrap.wrap(text, max(20, width - _INDENT), break_on_hyphens=False) or [""]
        head = f"\x1b[{_COLOURS[finding.status]}m{mark}\x1b[0m" if has_colour else mark
        typer.echo(head + f"\n{' ' * _INDENT}".join(lines))
        if finding.fix:
            typer.echo(" " * _INDENT + f"-> {one_line(finding.fix)}")
    counts = {status: sum(finding.status is status for finding in found) for status in Status}
    typer.echo(f"{counts[Status.OK]} ok, {counts[Status.WARN]} to better, {counts[Status.FAIL]} to mend")
