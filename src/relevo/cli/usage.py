"""`relevo usage`: what was used and what it cost, from the ledger."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.table import Table

from relevo.build.ledger import data_folder
from relevo.build.metering import unix_ms
from relevo.cli.database import DatabaseUrl, DataDir, connect, print_table
from relevo.cluster.identity_folder import NODE
from relevo.core.errors import StartError
from relevo.gateway.metering.database import DatabaseError
from relevo.gateway.metering.ledger import UsageFilter, usage_sums
from relevo.gateway.metering.usage_query import COUNT_NAMES, parse_group_by, parse_moment, usage_json

_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")


class UsageFormat(StrEnum):
    TABLE = "table"
    CSV = "csv"
    JSON = "json"


def usage(
    by: Annotated[
        str, typer.Option(help="Comma separated: key, tenant, model, day, outcome, cause.")
    ] = "key,model,day",
    since: Annotated[str | None, typer.Option(help="From then on: 2026-11-30, Unix seconds, 24h, 7d.")] = None,
    until: Annotated[str | None, typer.Option(help="Before then; the same forms.")] = None,
    key: Annotated[str | None, typer.Option(help="Of one key: its id.")] = None,
    format: Annotated[UsageFormat, typer.Option(help="table, csv or json.")] = UsageFormat.TABLE,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Sum the usage ledger: requests, billed tokens, and their cost in the currency of the prices."""
    now_ms = unix_ms()
    group_by = parse_group_by(by, "--by")
    where = UsageFilter(
        since_ms=None if since is None else parse_moment(since, now_ms, "--since"),
        until_ms=None if until is None else parse_moment(until, now_ms, "--until"),
        key_id=key,
    )
    try:
        sums = usage_sums(connect(data_dir, database_url), group_by, where)
    except DatabaseError as error:
        raise StartError(f"the usage ledger cannot be read: {error}") from error
    if not database_url and (data_folder(data_dir) / "cluster" / NODE).exists():
        typer.echo("this box belongs to a cluster and keeps a ledger of its own: others have theirs", err=True)
    found = usage_json(group_by, where, sums)
    columns = [*found["group_by"], *COUNT_NAMES]
    if format is UsageFormat.JSON:
        typer.echo(json.dumps(found, indent=1))
    elif format is UsageFormat.CSV:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows([_csv_cell(row[column]) for column in columns] for row in found["data"])
    else:
        _print_table(columns, len(group_by), found["data"], found["total"])


def _csv_cell(value: str | int) -> str | int:
    """Spreadsheets compute what begins like a formula, a model called `=cmd` too; an apostrophe makes it text."""
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA_STARTS) else value


def _print_table(columns: Sequence[str], num_groups: int, rows: list[dict[str, Any]], total: dict[str, Any]) -> None:
    table = Table(box=None, pad_edge=False)
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number < num_groups else "right")
    for row in rows:
        table.add_row(*(_cell(row[column]) for column in columns))
    table.add_section()
    named = ["total" if number == 0 else "" for number in range(num_groups)]
    table.add_row(*named, *(_cell(total[column]) for column in columns[num_groups:]))
    print_table(table)


def _cell(value: str | int) -> str:
    return f"{value:,}" if isinstance(value, int) else value or "(no key)"
