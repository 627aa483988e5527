"""`--report FILE`: the page of an experiment, with how it came to be. Asked for before, written after it.

Owns what of this process a page tells: the command as it was typed, the settings that are not the defaults, versions
and machine. Keys are in none of it.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping
from html import escape
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer

from relevo.bench.html.file import need_writable, write_whole
from relevo.bench.html.page import Origin, Report, page
from relevo.bench.html.secrets import (
    REDACTED,
    is_secret_name,
    known_secrets,
    redacted,
    redacted_command,
    shell_line,
    without,
)
from relevo.build.backend import instruction_path
from relevo.core.errors import SettingsError

_TAGS = re.compile(r"(<[^>]*>)")
_LABELLED = "aria-label="  # of tags that repeat names
_GIVEN = ("COMMANDLINE", "ENVIRONMENT")  # where a value came from, as click calls it

_command: typer.Context | None = None  # that was asked for a report; a process runs one


def _asked(context: typer.Context, path: Path | None) -> Path | None:
    global _command
    _command = context
    if path is not None:
        try:
            need_writable(path)
        except SettingsError as error:
            raise typer.BadParameter(error.message) from error
    return path


ReportOut = Annotated[
    Path | None,
    typer.Option(
        "--report", callback=_asked, help="Write tables, plots, command, versions and data to this file, as HTML."
    ),
]


def write_report(
    path: Path | None,
    make: Callable[[], Report],
    environment: Mapping[str, Any],
    body: Mapping[str, Any],
    *,
    partial: str = "",
) -> bool:
    """Whether there was one to write. Raises SettingsError if it cannot be written. `partial`: why there is no more."""
    if path is None:
        return False
    secrets = known_secrets(sys.argv, os.environ)
    facts = dict(environment)
    found = instruction_path()
    if found:
        facts["instruction_path"] = found
    data = _json({"environment": facts, "partial": partial or None, **body}, secrets)
    origin = Origin(
        command=shell_line(redacted_command(["relevo", *sys.argv[1:]])),
        at=str(environment["started_at"]),
        facts=_facts(facts),
        settings=_settings(),
    )
    write_whole(path, _without(page(make(), origin, data, partial=partial), secrets))
    return True


def _json(body: Mapping[str, Any], secrets: list[str]) -> bytes:
    text = orjson.dumps(body, default=str, option=orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY).decode()
    return without(text, [orjson.dumps(secret).decode()[1:-1] for secret in secrets]).encode()


def _without(html: str, secrets: list[str]) -> str:
    """In what is read, not in the language of the page."""
    forms = [escape(secret) for secret in secrets]
    parts = _TAGS.split(html)
    return (
        "".join(without(p, forms) if not p.startswith("<") or _LABELLED in p else p for p in parts) if forms else html
    )


def _settings() -> list[tuple[str, str]]:
    """Of the command that runs: what was given, on its line or in the environment."""
    if _command is None:
        return []
    rows = []
    for parameter in _command.command.params:
        name, source = parameter.name or "", _command.get_parameter_source(parameter.name or "")
        if source is not None and source.name in _GIVEN:
            flag = max(parameter.opts, key=len) if parameter.param_type_name == "option" else name.upper()
            rows.append((flag, REDACTED if is_secret_name(flag) else _words(_command.params.get(name))))
    return rows


def _words(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(_words, value))
    return redacted(str(value))


def _facts(environment: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Of the machine that ran this command; a server at an address may be on another one."""
    rows = [(name, version) for name, version in environment["versions"].items()]
    rows.append(("python", environment["python"]))
    cores, memory = environment.get("usable_cpus"), environment.get("memory_bytes")
    told = {
        "operating system": environment.get("os"),
        "kernel": environment.get("kernel"),
        "processor": environment.get("cpu_model"),
        "cores": f"{','.join(map(str, cores))} of {environment.get('num_cpus')}" if cores else None,
        "memory": f"{memory / 2**30:.1f} GiB" if memory else None,
        "instruction path": environment.get("instruction_path"),
        "OMP_NUM_THREADS": environment.get("omp_num_threads"),
    }
    return [*rows, *((name, str(value)) for name, value in told.items() if value)]
