"""One suite for every place where answers are kept for their clients.

Red when an answer is shown to another tenant or after its time, a chain has a gap or another order, or what a
conversation still needs is removed before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from postgres_server import postgres, why_not

from relevo.core.errors import InvalidRequest, LedgerUnavailable
from relevo.gateway.answers import database as in_database
from relevo.gateway.answers.database import CLEAN_EVERY_MS, DatabaseAnswers
from relevo.gateway.answers.memory import MemoryAnswers
from relevo.gateway.answers.store import AnswerStore, StoredAnswer
from relevo.gateway.metering.database import Connection, DatabaseError, SqliteDatabase
from relevo.gateway.metering.schema import prepare
from relevo.gateway.metering.sql_alchemy import SqlAlchemyDatabase

LIFETIME_S = 1000.0


@dataclass
class Now:
    ms: int = 1_796_000_400_000

    def __call__(self) -> int:
        return self.ms


@pytest.fixture(scope="module")
def postgres_url() -> Iterator[str]:
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    with postgres() as url:
        yield url


@pytest.fixture
def now() -> Now:
    return Now()


@pytest.fixture(params=["memory", "file", "alchemy", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path, now: Now) -> Iterator[AnswerStore]:
    if request.param == "memory":
        yield MemoryAnswers(LIFETIME_S, now_ms=now)
        return
    connection = _connection(request, tmp_path)
    prepare(connection)
    yield DatabaseAnswers(connection, LIFETIME_S, now_ms=now)
    connection.close()


def _connection(request: pytest.FixtureRequest, tmp_path: Path) -> Connection:
    if request.param == "file":
        return SqliteDatabase(tmp_path / "relevo.db").connect()
    if request.param == "alchemy":
        return SqlAlchemyDatabase(f"sqlite:///{tmp_path / 'alchemy.db'}?timeout=60").connect()
    connection = SqlAlchemyDatabase(request.getfixturevalue("postgres_url")).connect()
    tables = ("usage_ledger", "api_keys", "relevo_facts", "kept_answers", "request_reports")
    connection.write([(f"DROP TABLE IF EXISTS {table}", ()) for table in tables])
    return connection


def an_answer(answer_id: str, previous_id: str = "", tenant: str = "t") -> StoredAnswer:
    body = f'{{"of":"{answer_id}","odd":"é🚀\\u0000"}}'
    return StoredAnswer(answer_id=answer_id, tenant=tenant, previous_id=previous_id, asked="[]", body=body)


async def test_what_is_kept_is_found_as_it_was(store: AnswerStore) -> None:
    await store.keep(an_answer("a"))
    assert await store.find("t", "a") == an_answer("a")
    assert await store.find("t", "b") is None
    assert await store.find("t", "") is None


async def test_another_tenant_sees_none_of_it(store: AnswerStore) -> None:
    """Red if a response, a chain or the right to delete followed from its id alone."""
    await store.keep(an_answer("a"))
    await store.keep(an_answer("b", "a", tenant="other"))
    assert await store.find("other", "a") is None
    assert not await store.forget("other", "a")
    assert [answer.answer_id for answer in await store.chain("other", "b")] == ["b"]
    assert await store.find("t", "a") is not None


async def test_a_chain_is_oldest_first_and_ends_where_one_is_gone(store: AnswerStore) -> None:
    for answer_id, previous_id in (("a", ""), ("b", "a"), ("c", "b"), ("d", "b")):
        await store.keep(an_answer(answer_id, previous_id))
    assert [answer.answer_id for answer in await store.chain("t", "c")] == ["a", "b", "c"]
    assert [answer.answer_id for answer in await store.chain("t", "d")] == ["a", "b", "d"]
    assert await store.forget("t", "a")
    assert not await store.forget("t", "a")
    assert [answer.answer_id for answer in await store.chain("t", "c")] == ["b", "c"]
    assert await store.chain("t", "a") == []


async def test_an_answer_lives_for_its_time_and_as_long_as_one_that_goes_on_from_it(
    store: AnswerStore, now: Now
) -> None:
    await store.keep(an_answer("a"))
    await store.keep(an_answer("alone"))
    now.ms += 600_000
    await store.keep(an_answer("b", "a"))
    now.ms += 600_000
    assert await store.find("t", "alone") is None
    assert [answer.answer_id for answer in await store.chain("t", "b")] == ["a", "b"]
    now.ms += 400_000
    assert await store.chain("t", "b") == []


async def test_what_has_ended_is_removed_from_the_database(tmp_path: Path, now: Now) -> None:
    """Red if the table only grew."""
    connection = SqliteDatabase(tmp_path / "relevo.db").connect()
    prepare(connection)
    answers = DatabaseAnswers(connection, LIFETIME_S, now_ms=now)
    for number in range(3):
        await answers.keep(an_answer(f"a{number}"))
    now.ms += int(LIFETIME_S * 1000) + CLEAN_EVERY_MS
    await answers.keep(an_answer("new"))
    assert connection.read("SELECT answer_id FROM kept_answers") == [("new",)]


async def test_more_text_than_is_kept_drops_what_would_end_next(tmp_path: Path, now: Now) -> None:
    """Red if stored conversations could fill the disk that the ledger needs."""
    connection = SqliteDatabase(tmp_path / "relevo.db").connect()
    prepare(connection)
    size = len(an_answer("a0").body) + 2
    answers = DatabaseAnswers(connection, LIFETIME_S, now_ms=now, max_chars=3 * size)
    for number in range(6):
        await answers.keep(an_answer(f"a{number}"))
        now.ms += CLEAN_EVERY_MS
    assert connection.read("SELECT answer_id FROM kept_answers ORDER BY answer_id") == [("a3",), ("a4",), ("a5",)]


async def test_of_too_much_text_the_tenant_that_has_most_loses_some(tmp_path: Path, now: Now) -> None:
    connection = SqliteDatabase(tmp_path / "relevo.db").connect()
    prepare(connection)
    size = len(an_answer("a0").body) + 2
    answers = DatabaseAnswers(connection, LIFETIME_S, now_ms=now, max_chars=3 * size)
    await answers.keep(an_answer("a0", tenant="quiet"))
    for number in range(1, 6):
        now.ms += CLEAN_EVERY_MS
        await answers.keep(an_answer(f"a{number}", tenant="loud"))
    assert connection.read("SELECT answer_id FROM kept_answers ORDER BY answer_id") == [("a0",), ("a4",), ("a5",)]


async def test_a_database_of_an_older_relevo_takes_them(tmp_path: Path) -> None:
    """Red if an upgrade failed, or left out what a fresh database has."""
    connection = SqliteDatabase(tmp_path / "relevo.db").connect()
    prepare(connection)
    connection.write([("DROP TABLE kept_answers", ())])
    connection.write([("UPDATE relevo_facts SET value = 3 WHERE name = 'schema_version'", ())])
    prepare(connection)
    answers = DatabaseAnswers(connection)
    await answers.keep(an_answer("a"))
    assert await answers.find("t", "a") == an_answer("a")


async def test_memory_holds_a_bounded_number_of_bytes_and_drops_what_was_not_asked_for_longest() -> None:
    answers = MemoryAnswers(max_bytes=5000)
    for number in range(4):
        await answers.keep(an_answer(f"a{number}"))
        assert await answers.chain("t", "a0")
    for number in range(4, 40):
        await answers.keep(an_answer(f"a{number}"))
        await answers.chain("t", "a0")
        assert answers.num_bytes <= 5000
    assert await answers.find("t", "a0") is not None
    assert await answers.find("t", "a1") is None


async def test_a_tenant_that_stores_much_pushes_out_its_own() -> None:
    """Red when one tenant can take from another what it is to go on from."""
    answers = MemoryAnswers(max_bytes=5000)
    await answers.keep(an_answer("a", tenant="quiet"))
    for number in range(40):
        await answers.keep(an_answer(f"b{number}", tenant="loud"))
    assert await answers.find("quiet", "a") is not None
    assert await answers.find("loud", "b0") is None and answers.num_bytes <= 5000


async def test_nothing_is_kept_for_no_time() -> None:
    answers = MemoryAnswers(0.0)
    assert not answers.keeps
    await answers.keep(an_answer("a"))
    assert await answers.find("t", "a") is None


async def test_a_chain_that_is_too_long_is_refused_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = SqliteDatabase(tmp_path / "relevo.db").connect()
    prepare(connection)
    answers = DatabaseAnswers(connection)
    await answers.keep(an_answer("a"))
    await answers.keep(an_answer("b", "a"))
    monkeypatch.setattr(in_database, "MAX_CHAIN_CHARS", 10)
    with pytest.raises(InvalidRequest, match="at most 10 are read"):
        await answers.chain("t", "b")


class Broken:
    def write(self, statements: object) -> None:
        raise DatabaseError("database or disk is full")

    def read(self, sql: str, parameters: object = None) -> list[tuple[str]]:
        raise DatabaseError("no connection")

    def close(self) -> None: ...


@pytest.mark.parametrize(
    "ask",
    [
        lambda answers: answers.keep(an_answer("a")),
        lambda answers: answers.find("t", "a"),
        lambda answers: answers.chain("t", "a"),
        lambda answers: answers.forget("t", "a"),
    ],
)
async def test_a_database_that_fails_is_one_error_that_says_what_to_do(
    ask: Callable[[DatabaseAnswers], object],
) -> None:
    answers = DatabaseAnswers(Broken())
    with pytest.raises(LedgerUnavailable, match="send 'store': false"):
        await ask(answers)  # type: ignore[misc]  # each is a coroutine
