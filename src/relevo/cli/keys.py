"""`relevo keys create|list|revoke`: API keys. A running server notices changes within about a second."""

from __future__ import annotations

import contextlib
import json
import time
from datetime import UTC, datetime
from decimal import Decimal
from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.table import Table

from relevo.build.ledger import database_location, keys_marker
from relevo.build.metering import unix_ms
from relevo.cli.database import DatabaseUrl, DataDir, connect, print_table
from relevo.cli.lifetimes import lifetime_s
from relevo.core.errors import SettingsError
from relevo.gateway.generation.terms import MAX_PRIORITY
from relevo.gateway.metering.keys import KeyRecord, create_key, list_keys, revoke_key
from relevo.policy.admission.key_limits import KeyLimits, Period
from relevo.policy.billing.pricing import MAX_BUDGET, MAX_DECIMALS, decimal_of, num_decimals, plain

app = typer.Typer(name="keys", help="API keys: who may use the server, and how much.", no_args_is_help=True)

MAX_NAME_CHARS = 200  # arbitrary


class ListFormat(StrEnum):
    TABLE = "table"
    JSON = "json"


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="What the key is for; shown in lists.")] = "",
    tenant: Annotated[
        str | None, typer.Option(help="Keys of one tenant share cached prefixes. Default: the key alone.")
    ] = None,
    budget: Annotated[str | None, typer.Option(help="Most it may cost, in the currency of --prices: 25.50.")] = None,
    budget_period: Annotated[
        Period, typer.Option(help="The budget is for ever, a day or a month (UTC).")
    ] = Period.TOTAL,
    tokens_per_minute: Annotated[
        int | None, typer.Option(min=1, help="Most tokens per minute; cached prompt tokens do not count.")
    ] = None,
    expires: Annotated[str | None, typer.Option(help="Lifetime or day: 12h, 30d, 2027-01-31.")] = None,
    best_priority: Annotated[
        int,
        typer.Option(
            min=-MAX_PRIORITY,
            max=0,
            help="Best priority its requests may ask for; below 0 is served before others. Default: 0.",
        ),
    ] = 0,
    admin: Annotated[bool, typer.Option("--admin", help="May see the usage of every key.")] = False,
    json_out: Annotated[bool, typer.Option("--json", help="Print the key and its record as JSON.")] = False,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Make a key. It is printed once and cannot be shown again."""
    now_ms = unix_ms()
    limits = KeyLimits(tokens_per_minute=tokens_per_minute, budget=_budget(budget), budget_period=budget_period)
    expires_at_ms = _expiry_ms(expires, now_ms)
    connection = connect(data_dir, database_url)
    with contextlib.suppress(OSError):  # of the data folder; the database remembers as long as it is there
        keys_marker(data_dir, database_location(data_dir, database_url)).leave()
    key, record = create_key(
        connection,
        name=_one_line("NAME", name),
        tenant=None if tenant is None else _one_line("--tenant", tenant),
        limits=limits,
        is_admin=admin,
        expires_at_ms=expires_at_ms,
        now_ms=now_ms,
        best_priority=best_priority,
    )
    if json_out:
        typer.echo(json.dumps({"key": key, **_shown(record)}, indent=1))
        return
    typer.echo(key)
    typer.echo(f"{record.key_id} for tenant {record.tenant}; the key is not shown again", err=True)


@app.command("list")
def list_all(
    format: Annotated[ListFormat, typer.Option(help="table or json.")] = ListFormat.TABLE,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Show every key that was ever made: its beginning, state and limits."""
    records = [_shown(record) for record in list_keys(connect(data_dir, database_url))]
    if format is ListFormat.JSON:
        typer.echo(json.dumps(records, indent=1))
        return
    columns = (
        "key_id",
        "prefix",
        "name",
        "tenant",
        "state",
        "budget",
        "tokens_per_minute",
        "best_priority",
        "created",
        "expires",
    )
    table = Table(*columns, box=None, pad_edge=False)
    for record in records:
        budget = record["budget"] and f"{record['budget']} {record['budget_period']}"
        cells = [budget if column == "budget" else record[column] for column in columns]
        table.add_row(*("" if cell is None else str(cell) for cell in cells))
    print_table(table)


@app.command()
def revoke(
    key: Annotated[str, typer.Argument(help="Its id or the beginning that lists show, not the key itself.")],
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
) -> None:
    """End a key for good; requests that run with it end within about a second."""
    record = revoke_key(connect(data_dir, database_url), key, unix_ms())
    typer.echo(f"revoked {record.key_id} ({record.prefix}...)", err=True)


def _shown(record: KeyRecord) -> dict[str, Any]:
    """Everything but the digest."""
    limits = record.limits
    return {
        "key_id": record.key_id,
        "prefix": record.prefix + "...",
        "name": record.name,
        "tenant": record.tenant,
        "state": record.state(unix_ms()),
        "admin": record.is_admin,
        "best_priority": record.best_priority,
        "budget": None if limits.budget is None else plain(limits.budget),
        "budget_period": str(limits.budget_period),
        "tokens_per_minute": limits.tokens_per_minute,
        "created": _iso(record.created_at_ms),
        "expires": _iso(record.expires_at_ms),
        "revoked": _iso(record.revoked_at_ms),
    }


def _budget(text: str | None) -> Decimal | None:
    amount = None if text is None else decimal_of(text.strip())
    if text is not None and (amount is None or not 0 < amount <= MAX_BUDGET or num_decimals(amount) > MAX_DECIMALS):
        raise SettingsError(
            f"--budget {text[:40]} must be a number above 0 and at most {MAX_BUDGET}, with {MAX_DECIMALS} decimals at "
            "most: 25.50 for example"
        )
    return amount


def _one_line(flag: str, text: str) -> str:
    """Lists and exports show it: no control characters."""
    if len(text) > MAX_NAME_CHARS or not text.isprintable():
        raise SettingsError(
            f"{flag} {text[:40]!r} must be one line of at most {MAX_NAME_CHARS} printable characters; shorten it"
        )
    return text


def _expiry_ms(text: str | None, now_ms: int) -> int | None:
    if text is None:
        return None
    seconds = lifetime_s(text)
    if seconds is not None:
        return now_ms + seconds * 1000
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise SettingsError(f"--expires {text} is neither a lifetime (12h, 30d) nor a day (2027-01-31)") from None
    expires_at_ms = int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
    if expires_at_ms <= now_ms:
        raise SettingsError(f"--expires {text} is over already")
    return expires_at_ms


def _iso(moment_ms: int | None) -> str | None:
    return None if moment_ms is None else time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(moment_ms / 1000))
