"""Where the commands that read or change metering find its database: the flags and variables of `relevo serve`."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from relevo.build.ledger import database_location, open_prepared
from relevo.core.errors import SettingsError
from relevo.gateway.metering.database import Connection

DataDir = Annotated[
    str | None,
    typer.Option("--data-dir", envvar="RELEVO_DATA_DIR", help="Folder of relevo.db, as given to relevo serve."),
]
DatabaseUrl = Annotated[
    str | None,
    typer.Option("--database-url", envvar="RELEVO_DATABASE_URL", help="PostgreSQL, as given to relevo serve."),
]


_LEAST_WIDTH = 200  # characters; a figure that is cut off is no figure, so narrow terminals wrap lines


def print_table(table: Table) -> None:
    console = Console(highlight=False)
    Console(highlight=False, width=max(console.width, _LEAST_WIDTH)).print(table, markup=False, soft_wrap=True)


def connect(data_dir: str | None, database_url: str | None) -> Connection:
    """Raises StartError, SettingsError."""
    location = database_location(data_dir, database_url)
    if location == "memory":
        raise SettingsError("--database-url memory lives inside a server; name its file or PostgreSQL")
    return open_prepared(location)
