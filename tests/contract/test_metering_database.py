"""One suite for every database that metering can keep its rows in.

Red when a statement is not portable, a transaction is not whole, a row can be there twice, or a number is rounded.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest
from postgres_server import postgres, why_not

from relevo.core.errors import InvalidRequest
from relevo.gateway.metering.database import Connection, Database, DatabaseError, MemoryDatabase, SqliteDatabase
from relevo.gateway.metering.keys import create_key, keys_revision, list_keys, revoke_key
from relevo.gateway.metering.ledger import (
    GroupBy,
    LedgerRow,
    RequestLengths,
    UsageFilter,
    put_rows,
    request_lengths,
    total_of,
    usage_sums,
)
from relevo.gateway.metering.schema import SCHEMA_VERSION, prepare
from relevo.gateway.metering.sql_alchemy import SqlAlchemyDatabase
from relevo.policy.admission.key_limits import KeyLimits, Period

DAY_MS = 86_400_000
MONDAY_MS = 1_796_000_400_000  # 2026-11-30 01:00 UTC

Open = Callable[[], Database]


@pytest.fixture(scope="module")
def postgres_url() -> Iterator[str]:
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    with postgres() as url:
        yield url


@pytest.fixture(params=["file", "memory", "alchemy", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    kind = request.param
    if kind == "file":
        return SqliteDatabase(tmp_path / "deep" / "relevo.db")
    if kind == "memory":
        return MemoryDatabase()
    if kind == "alchemy":
        return SqlAlchemyDatabase(f"sqlite:///{tmp_path / 'alchemy.db'}?timeout=60")
    url = request.getfixturevalue("postgres_url")
    database = SqlAlchemyDatabase(url)
    tables = ("usage_ledger", "api_keys", "relevo_facts")
    database.connect().write([(f"DROP TABLE IF EXISTS {table}", ()) for table in tables])
    return database


@pytest.fixture
def connection(database: Database) -> Iterator[Connection]:
    opened = database.connect()
    prepare(opened)
    yield opened
    opened.close()


ROW = LedgerRow(
    request_id="r0",
    response_id="cmpl-0",
    key_id="key-a",
    tenant="acme",
    model="m",
    outcome="finished",
    prompt_tokens=100,
    cached_tokens=64,
    completion_tokens=10,
    unbilled_prompt_tokens=0,
    unbilled_completion_tokens=0,
    input_cost_per_token="0.00000014999999999999998",
    cache_read_input_token_cost="0.0000000033",
    output_cost_per_token="0.00000061",
    cost="0.00001171119999999999928",
    started_at_ms=MONDAY_MS - 5,
    ended_at_ms=MONDAY_MS,
)


def put(connection: Connection, *rows: LedgerRow) -> None:
    connection.write([put_rows(rows)])


def test_a_row_comes_back_as_it_was_written(connection: Connection) -> None:
    put(connection, ROW)
    columns = ", ".join(LedgerRow.__dataclass_fields__)
    ((*values,),) = connection.read(f"SELECT {columns} FROM usage_ledger")
    assert LedgerRow(**dict(zip(LedgerRow.__dataclass_fields__, values, strict=True))) == ROW  # type: ignore[arg-type]


def test_writing_a_row_again_replaces_it(connection: Connection) -> None:
    put(connection, ROW, ROW)
    put(connection, replace(ROW, outcome="failed", prompt_tokens=0, cached_tokens=0, completion_tokens=0))
    (found,) = usage_sums(connection, (GroupBy.OUTCOME,), UsageFilter())
    assert (found.group, found.num_requests, found.cost) == (("failed",), 1, 0)


def test_lengths_are_told_in_the_order_of_coming_and_nothing_else(connection: Connection) -> None:
    """Red when work that was not billed is no load, or a filter is lost between the databases."""
    late = replace(ROW, request_id="r1", started_at_ms=MONDAY_MS - 1, model="other", unbilled_prompt_tokens=7)
    early = replace(ROW, request_id="r2", started_at_ms=MONDAY_MS - 9, unbilled_completion_tokens=3)
    put(connection, late, ROW, early)
    told = request_lengths(connection, UsageFilter(since_ms=MONDAY_MS))
    assert told == [
        RequestLengths(MONDAY_MS - 9, 100, 64, 13, ROW.ended_at_ms, "m", ROW.tenant, ROW.outcome),
        RequestLengths(MONDAY_MS - 5, 100, 64, 10, ROW.ended_at_ms, "m", ROW.tenant, ROW.outcome),
        RequestLengths(MONDAY_MS - 1, 107, 64, 10, ROW.ended_at_ms, "other", ROW.tenant, ROW.outcome),
    ]
    assert request_lengths(connection, UsageFilter(), "other") == told[2:]
    assert request_lengths(connection, UsageFilter(since_ms=MONDAY_MS + 1), "m") == []


def test_a_transaction_is_whole_or_not_there(connection: Connection) -> None:
    with pytest.raises(DatabaseError):
        connection.write([put_rows([ROW]), ("INSERT INTO no_such_table (a) VALUES (:a)", ({"a": 1},))])
    assert usage_sums(connection, (), UsageFilter()) == []
    put(connection, ROW)  # and the connection goes on
    assert len(usage_sums(connection, (), UsageFilter())) == 1


def test_sums_are_exact_over_changing_prices_and_large_numbers(connection: Connection) -> None:
    rows = [
        replace(
            ROW,
            request_id=f"r{number}",
            prompt_tokens=10**15 + number,
            cached_tokens=number,
            completion_tokens=10**15,
            input_cost_per_token="0.0000000000000000000000000000000001" if number % 2 else "0.00000015",
        )
        for number in range(9)
    ]
    put(connection, *rows)
    expected = sum(
        int(Decimal(row.input_cost_per_token).scaleb(34)) * (row.prompt_tokens - row.cached_tokens)
        + int(Decimal(row.cache_read_input_token_cost).scaleb(34)) * row.cached_tokens
        + int(Decimal(row.output_cost_per_token).scaleb(34)) * row.completion_tokens
        for row in rows
    )
    (one,) = usage_sums(connection, (), UsageFilter())
    whole, _, decimals = one.cost_text.partition(".")
    assert int(whole + decimals.ljust(34, "0")) == expected
    assert one.prompt_tokens == sum(row.prompt_tokens for row in rows)


def test_groups_and_bounds(connection: Connection) -> None:
    put(
        connection,
        ROW,
        replace(ROW, request_id="r1", ended_at_ms=MONDAY_MS + DAY_MS, model="n"),
        replace(ROW, request_id="r2", ended_at_ms=MONDAY_MS + DAY_MS, key_id="key-b"),
    )
    by_day = usage_sums(connection, (GroupBy.DAY,), UsageFilter())
    assert [(one.group, one.num_requests) for one in by_day] == [(("2026-11-30",), 1), (("2026-12-01",), 2)]
    by_key_and_model = usage_sums(connection, (GroupBy.KEY, GroupBy.MODEL), UsageFilter())
    assert [one.group for one in by_key_and_model] == [("key-a", "m"), ("key-a", "n"), ("key-b", "m")]
    assert total_of(by_key_and_model).num_requests == 3
    bounded = UsageFilter(since_ms=MONDAY_MS, until_ms=MONDAY_MS + DAY_MS)
    assert total_of(usage_sums(connection, (), bounded)).num_requests == 1
    assert total_of(usage_sums(connection, (), UsageFilter(key_id="key-b"))).num_requests == 1
    assert total_of(usage_sums(connection, (), UsageFilter(key_id="nobody"))).num_requests == 0


def test_keys_are_kept_with_their_limits_and_without_the_key(connection: Connection) -> None:
    limits = KeyLimits(tokens_per_minute=10, budget=Decimal("1.50"), budget_period=Period.MONTH)
    assert list_keys(connection) == []
    before = keys_revision(connection)
    key, record = create_key(
        connection, name="n", tenant="acme", limits=limits, is_admin=True, expires_at_ms=99, now_ms=7
    )
    assert list_keys(connection) == [record] and record.limits == limits and record.is_admin
    assert keys_revision(connection) == before + 1
    assert key not in str(connection.read("SELECT * FROM api_keys"))
    assert (record.state(98), record.state(99)) == ("active", "expired")


def test_a_revoked_key_stays_in_the_list(connection: Connection) -> None:
    _, one = create_key(
        connection, name="", tenant=None, limits=KeyLimits(), is_admin=False, expires_at_ms=None, now_ms=1
    )
    assert one.tenant == one.key_id
    before = keys_revision(connection)
    assert revoke_key(connection, one.prefix, 5).revoked_at_ms == 5
    assert revoke_key(connection, one.key_id, 6).revoked_at_ms == 5, "revoking twice changes nothing"
    assert keys_revision(connection) == before + 1
    assert [record.state(9) for record in list_keys(connection)] == ["revoked"]
    with pytest.raises(InvalidRequest, match="nobody"):
        revoke_key(connection, "nobody", 7)


def test_preparing_again_changes_nothing_and_other_versions_are_refused(connection: Connection) -> None:
    put(connection, ROW)
    prepare(connection)
    assert total_of(usage_sums(connection, (), UsageFilter())).num_requests == 1
    next_version = f"UPDATE relevo_facts SET value = {SCHEMA_VERSION + 1} WHERE name = 'schema_version'"
    connection.write([(next_version, ())])
    with pytest.raises(DatabaseError, match=f"version {SCHEMA_VERSION + 1}"):
        prepare(connection)


def test_tables_of_an_older_version_are_brought_up_to_date_with_their_rows(database: Database) -> None:
    """Red if an upgrade lost a key, gave it a priority, or failed where two processes start at once."""
    connection = database.connect()
    prepare(connection)
    limits = KeyLimits(tokens_per_minute=10)
    _, record = create_key(
        connection, name="n", tenant="t", limits=limits, is_admin=False, expires_at_ms=None, now_ms=7, best_priority=-4
    )
    assert list_keys(connection) == [record] and record.best_priority == -4
    put(connection, replace(ROW, cause="complete"))
    older = (
        "ALTER TABLE api_keys DROP COLUMN best_priority",
        "ALTER TABLE usage_ledger DROP COLUMN cause",
        "UPDATE relevo_facts SET value = 1 WHERE name LIKE 's%'",
    )
    connection.write([(sql, ()) for sql in older])
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda _: prepare(database.connect()), range(2)))
    assert list_keys(connection) == [replace(record, best_priority=0)]
    assert connection.read("SELECT request_id, cause FROM usage_ledger") == [("r0", "")]
    prepare(connection)


def test_two_connections_write_at_once(database: Database) -> None:
    """Each row is there once, whoever wrote it and however they met."""
    first, second = database.connect(), database.connect()
    prepare(first)

    def write(connection: Connection, name: str) -> None:
        for number in range(40):
            put(connection, replace(ROW, request_id=f"{name}{number}"), replace(ROW, request_id=f"same{number}"))

    threads = [threading.Thread(target=write, args=pair) for pair in ((first, "a"), (second, "b"))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert total_of(usage_sums(first, (), UsageFilter())).num_requests == 120
    first.close()
    second.close()


def test_what_was_written_is_there_after_the_connection(tmp_path: Path) -> None:
    path = tmp_path / "relevo.db"
    first = SqliteDatabase(path, fsync=True).connect()
    prepare(first)
    put(first, ROW)
    other = SqliteDatabase(path).connect()  # while the first is open, as after a kill
    assert total_of(usage_sums(other, (), UsageFilter())).num_requests == 1
    assert path.stat().st_mode & 0o077 == 0, "others can read who uses how much"


def test_a_url_that_leads_nowhere_is_an_error_without_its_password() -> None:
    database = SqlAlchemyDatabase("postgresql://user:hunter2@127.0.0.1:1/x")
    assert "hunter2" not in database.name
    with pytest.raises(DatabaseError) as caught:
        database.connect()
    assert "hunter2" not in str(caught.value)
    with pytest.raises(DatabaseError):
        SqlAlchemyDatabase("nothing-like-a-url")
