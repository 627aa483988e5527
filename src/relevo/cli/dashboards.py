"""`relevo dashboards DIR`: writes the Grafana dashboards, an example for Prometheus and its rules.

Does not know what they show: `make dashboards` writes the package data. How to use them: docs/guides/dashboards.md.
"""

from __future__ import annotations

from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated

import typer

from relevo.core.errors import SettingsError

_NUM_NAMED = 3  # arbitrary: of the files that are in the way


def dashboards(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where to write; made if it is not there.")],
    force: Annotated[
        bool, typer.Option("--force", help="Write although DIR holds other files, and over changed ones.")
    ] = False,
) -> None:
    """Write Grafana dashboards, a Prometheus scrape example, recording rules and alert rules into DIR."""
    packaged = _packaged(files("relevo") / "dashboards")
    if folder.exists() and not folder.is_dir():
        raise SettingsError(f"{folder} is a file; name a folder")
    try:
        in_the_way = [] if force else _in_the_way(folder, packaged)
        if in_the_way:
            named = ", ".join(in_the_way[:_NUM_NAMED]) + (", ..." if len(in_the_way) > _NUM_NAMED else "")
            raise SettingsError(
                f"{folder} holds files that are not these dashboards, or were changed: {named}; name another folder, "
                "or add --force to write over those of the same name"
            )
        for name, content in packaged.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    except OSError as error:
        raise SettingsError(f"cannot write {error.filename or folder}: {error.strerror}; name another folder") from None
    for name in packaged:
        typer.echo(str(folder / name))


def _packaged(folder: Traversable, under: str = "") -> dict[str, bytes]:
    """Contents by path below `folder`."""
    found: dict[str, bytes] = {}
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if entry.is_dir():
            found |= _packaged(entry, f"{under}{entry.name}/")
        else:
            found[under + entry.name] = entry.read_bytes()
    return found


def _in_the_way(folder: Path, packaged: dict[str, bytes]) -> list[str]:
    """Files below `folder` that are not ours, or no more as we wrote them."""
    if not folder.exists():
        return []
    there = {str(path.relative_to(folder)): path for path in sorted(folder.rglob("*")) if not path.is_dir()}
    return [name for name, path in there.items() if name not in packaged or path.read_bytes() != packaged[name]]
