"""Reports of requests in the database: SQLite and PostgreSQL, through both drivers.

Red when a report is shown to another tenant, the bound does not hold, or a database that fails is felt by requests.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from postgres_server import postgres, why_not

from relevo.core.errors import LedgerUnavailable
from relevo.gateway.metering.database import Connection, Database, DatabaseError, Row, SqliteDatabase, Statement
from relevo.gateway.metering.schema import SCHEMA_VERSION, prepare
from relevo.gateway.metering.sql_alchemy import SqlAlchemyDatabase
from relevo.gateway.requests import store as in_store
from relevo.gateway.requests.kept import KeptRequest, LiveRequest
from relevo.gateway.requests.store import DatabaseReports


@pytest.fixture(scope="module")
def postgres_url() -> Iterator[str]:
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    with postgres() as url:
        yield url


@pytest.fixture(params=["file", "alchemy", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    if request.param == "file":
        return SqliteDatabase(tmp_path / "relevo.db")
    if request.param == "alchemy":
        return SqlAlchemyDatabase(f"sqlite:///{tmp_path / 'alchemy.db'}?timeout=60")
    return SqlAlchemyDatabase(request.getfixturevalue("postgres_url"))


def kept(name: str, tenant: str = "", ended_ms: int = 0, response_id: str = "") -> KeptRequest:
    live = LiveRequest(
        x_request_id=name, tenant=tenant, key_id="", path="/", accepted_at_ns=0, arrived_at_unix_ms=ended_ms
    )
    live.response_id = response_id
    return live.as_kept(200, 0)


def report(one: KeptRequest) -> dict[str, Any]:
    return {"name": one.x_request_id, "tenant": one.tenant, "at": one.arrived_at_unix_ms, "odd": "é🚀"}


def reports(database: Database, most: int = 100) -> DatabaseReports:
    writing = database.connect()
    prepare(writing)
    return DatabaseReports(writing, database.connect(), most, report)


async def test_what_is_kept_is_found_after_a_start_by_every_name(database: Database) -> None:
    first = reports(database)
    first.keep(kept("mine", "acme", 5, "answer-1"))
    first.keep(kept("mine", "other", 6))
    first.keep(kept("mine", "acme", 4))
    first.close(10.0)
    second = reports(database)
    for name in ("mine", "answer-1"):
        assert await second.find(name, "acme", is_admin=False) == report(kept("mine", "acme", 5))
    assert await second.find("answer-1", "other", is_admin=False) is None
    assert await second.find("answer-1", "root", is_admin=True) == report(kept("mine", "acme", 5))
    assert await second.find("mine", "other", is_admin=True) == report(kept("mine", "other", 6))
    assert await second.find("' OR 1=1 --", "acme", is_admin=True) is None
    second.close(10.0)


async def test_the_newest_are_kept_and_no_more(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_store, "CLEAN_EVERY", 1)
    writing = database.connect()
    prepare(writing)
    writing.write([("DELETE FROM request_reports", ())])
    store = reports(database, most=3)
    for number in range(8):
        store.keep(kept(f"bounded-{number}", "", 1000 + number))
    store.close(10.0)
    rows = writing.read("SELECT x_request_id FROM request_reports ORDER BY ended_at_ms")
    assert [name for (name,) in rows] == ["bounded-5", "bounded-6", "bounded-7"]
    writing.close()


def test_an_older_database_is_brought_up_to_date(database: Database) -> None:
    connection = database.connect()
    prepare(connection)
    connection.write([("DROP TABLE request_reports", ())])
    connection.write([("UPDATE relevo_facts SET value = 4 WHERE name = 'schema_version'", ())])
    prepare(connection)
    assert connection.read("SELECT body FROM request_reports") == []
    ((version,),) = connection.read("SELECT value FROM relevo_facts WHERE name = 'schema_version'")
    assert version == SCHEMA_VERSION
    connection.close()


@dataclass
class Broken:
    """A database that takes nothing."""

    num_writes: int = 0
    written: list[str] = field(default_factory=list)

    def write(self, statements: Sequence[Statement]) -> None:
        self.num_writes += 1
        raise DatabaseError("the disk is full")

    def read(self, sql: str, parameters: Any = None) -> list[Row]:
        raise DatabaseError("the disk is gone")

    def close(self) -> None:
        pass


async def test_a_database_that_fails_is_told_to_who_asks_and_to_no_other(caplog: pytest.LogCaptureFixture) -> None:
    """Red when `keep` raises or waits, or a failure is silent."""
    broken: Connection = Broken()
    store = DatabaseReports(broken, broken, 10, report)
    for number in range(3 * in_store.MAX_WAITING):
        store.keep(kept(f"r{number}"))
    with pytest.raises(LedgerUnavailable):
        await store.find("r1", "", is_admin=False)
    store.close(10.0)
    assert "not kept" in caplog.text and "cannot be read" in caplog.text


async def test_a_report_that_cannot_be_made_keeps_no_other_back(tmp_path: Path) -> None:
    def breaks(one: KeptRequest) -> dict[str, Any]:
        if one.x_request_id == "bad":
            raise ValueError("no such cause")
        return report(one)

    database = SqliteDatabase(tmp_path / "relevo.db")
    writing = database.connect()
    prepare(writing)
    store = DatabaseReports(writing, database.connect(), 10, breaks)
    for name in ("bad", "good"):
        store.keep(kept(name))
    store.close(10.0)
    assert await store.find("good", "", is_admin=False) is not None
    assert await store.find("bad", "", is_admin=False) is None
