"""A key database that is lost, emptied, replaced or silent: nothing that was closed is opened by it.

Red when a start without the keys that there were serves everybody, when a revoked key goes on working because its
database's file was replaced, when rows go to a file that is gone, and when a database that does not answer leaves the
keys of yesterday valid.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from metered_gateway import NOW_MS, CountingLedgerMetrics, metered, until
from scripted_gateway import MODEL, CountingClock, says

from relevo.build.ledger import check_keys, database_location, keys_marker, open_prepared
from relevo.core.errors import StartError, Unauthorized
from relevo.gateway.http.auth import ApiKeys
from relevo.gateway.metering import refresh as refresh_module
from relevo.gateway.metering.accounts import Accounts
from relevo.gateway.metering.database import Connection, DatabaseError, Parameters, Row, SqliteDatabase
from relevo.gateway.metering.key_ring import KeyRing
from relevo.gateway.metering.keys import create_key, revoke_key
from relevo.gateway.metering.keys_marker import KeysMarker
from relevo.gateway.metering.meter import Meter
from relevo.gateway.metering.refresh import MeteringRefresh
from relevo.gateway.metering.schema import prepare
from relevo.gateway.metering.writer import LedgerWriter
from relevo.policy.admission.key_limits import KeyLimits
from relevo.settings import Settings


def make_key(connection: Connection) -> tuple[str, str]:
    key, record = create_key(
        connection, name="", tenant=None, limits=KeyLimits(), is_admin=False, expires_at_ms=None, now_ms=NOW_MS
    )
    return key, record.key_id


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Try a start over the folder, as `relevo serve` does before anything runs."""
    monkeypatch.delenv("RELEVO_DATABASE_URL", raising=False)

    def try_to_start(**asked: Any) -> None:
        settings = Settings(data_dir=str(tmp_path), **asked)
        assert check_keys(database_location(settings.data_dir, settings.database_url), settings) == ()

    return try_to_start


def location(folder: Path) -> str:
    return str(folder / "relevo.db")


def lose(folder: Path) -> None:
    for path in folder.glob("relevo.db*"):
        path.unlink()


def test_a_start_without_the_keys_that_there_were_is_refused(tmp_path: Path, start: Any) -> None:
    start()  # no keys were ever there: open
    make_key(open_prepared(location(tmp_path)))
    start()
    lose(tmp_path)
    with pytest.raises(StartError, match=r"there were some.*keys create.*remove .*keys-existed-"):
        start()
    start(api_key=("given",))  # closed in another way
    make_key(open_prepared(location(tmp_path)))
    start()


def test_who_removes_the_marker_serves_without_keys(tmp_path: Path, start: Any) -> None:
    make_key(open_prepared(location(tmp_path)))
    start()
    lose(tmp_path)
    marker = keys_marker(str(tmp_path), location(tmp_path))
    assert marker.path.stat().st_mode & 0o077 == 0 and location(tmp_path) in marker.path.read_text()
    marker.path.unlink()
    start()


def test_an_emptied_table_is_no_reason_to_open(tmp_path: Path, start: Any) -> None:
    connection = open_prepared(location(tmp_path))
    make_key(connection)
    connection.write([("DELETE FROM api_keys", ())])
    with pytest.raises(StartError, match="removed from its table"):
        start()


def test_where_keys_are_required_there_is_no_start_without_any(start: Any) -> None:
    with pytest.raises(StartError, match="--require-keys: there are no API keys"):
        start(require_keys=True)
    with pytest.raises(StartError, match="--require-keys"):
        start(require_keys=True, database_url="memory")
    start(require_keys=True, api_key=("one",))


def test_a_ring_that_needs_a_key_takes_none_where_there_is_none() -> None:
    ring = KeyRing(ApiKeys(), lambda: NOW_MS, is_closed=True)
    for headers in ({}, {"authorization": "Bearer anything"}):
        with pytest.raises(Unauthorized):
            ring.identify(headers)


async def test_keys_that_vanish_while_it_runs_do_not_open_it() -> None:
    async with metered(says("a")) as m:
        key, _ = await m.make_key()
        m.connection.inner.write([("DELETE FROM api_keys", ()), ("UPDATE relevo_facts SET value = value + 1", ())])
        await m.refresh.refresh(only_new=True)
        assert (await m.rig.complete()).status_code == 401
        body = {"model": MODEL, "prompt": "hi"}
        assert (await m.rig.post("/v1/completions", body, authorization=f"Bearer {key}")).status_code == 401


class Kept:
    """Metering over a file, as a gateway has it."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "relevo.db"
        database = SqliteDatabase(self.path)
        self.writing, self.reading = database.connect(), database.connect()
        prepare(self.writing)
        self.metrics = CountingLedgerMetrics()
        self.ring = KeyRing(ApiKeys(), lambda: NOW_MS)
        self.meter = Meter(
            writer=LedgerWriter(self.writing, self.metrics),
            accounts=Accounts(),
            prices={},
            clock=CountingClock(),
            now_ms=lambda: NOW_MS,
            metrics=self.metrics,
        )
        self.marker = KeysMarker(folder, database.name)
        self.refresh = MeteringRefresh(self.reading, self.ring, self.meter, self.marker)


@pytest.mark.parametrize("how", ["removed", "replaced"])
async def test_a_file_that_goes_away_under_it_closes_it_and_takes_no_row(tmp_path: Path, how: str) -> None:
    kept = Kept(tmp_path)
    _, key_id = make_key(kept.writing)
    await kept.refresh.try_refresh(only_new=True)
    assert not kept.meter.failure and kept.marker.exists
    away = tmp_path / "away.db"
    kept.path.rename(away)
    if how == "replaced":
        other = SqliteDatabase(tmp_path / "other.db").connect()
        prepare(other)
        other.close()
        (tmp_path / "other.db").rename(kept.path)
    await kept.refresh.try_refresh(only_new=True)
    assert kept.meter.failure and not kept.metrics.keys_are_up
    with pytest.raises(DatabaseError, match=f"was {how}"):
        kept.writing.write([("DELETE FROM usage_ledger", ())])
    away.rename(kept.path)  # the one that was there
    await kept.refresh.try_refresh(only_new=True)
    assert not kept.meter.failure and kept.metrics.keys_are_up
    revoke_key(kept.writing, key_id, NOW_MS)


async def test_a_database_that_does_not_answer_closes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Red when a read that hangs leaves everything as it was: a revocation would wait for the end of the outage."""
    monkeypatch.setattr(refresh_module, "ANSWER_S", 0.01)
    kept = Kept(tmp_path)
    answers = threading.Event()

    class Silent:
        num_reads = 0

        def read(self, sql: str, parameters: Parameters | None = None) -> list[Row]:
            Silent.num_reads += 1
            answers.wait()
            return kept.reading.read(sql, parameters)

        def write(self, statements: Sequence[Any]) -> None:
            raise AssertionError("nothing is written here")

        def close(self) -> None:
            return

    refresh = MeteringRefresh(Silent(), kept.ring, kept.meter)
    refreshing = asyncio.create_task(refresh.try_refresh(only_new=True))
    try:
        await until(lambda: bool(kept.meter.failure))
        assert Silent.num_reads == 1, "what hangs does not pile up"
    finally:
        answers.set()
    await refreshing
    assert not kept.meter.failure
