"""The journal of ledger rows: a row that went in is in the ledger once after the next start, whatever happens between.

Red when a replay that was cut short doubles or loses a row, when one broken line costs the others, when the rows of a
living process are taken, and when the file can be read by others or grow without end.
"""

from __future__ import annotations

import errno
import json
import os
import zlib
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_metering_database import ROW

from relevo.gateway.metering import journal as journal_module
from relevo.gateway.metering.database import (
    Connection,
    DatabaseError,
    MemoryDatabase,
    Parameters,
    Row,
    SqliteDatabase,
    Statement,
    name_within,
)
from relevo.gateway.metering.journal import Journal, JournalError, Replayed, check_journal_folder, replay_journals
from relevo.gateway.metering.ledger import LedgerRow, put_rows
from relevo.gateway.metering.schema import prepare

NAME = "the database"


def rows(number: int, start: int = 0) -> list[LedgerRow]:
    return [replace(ROW, request_id=f"r{start + i}", model='a,b\n"c"') for i in range(number)]


def prepared() -> Connection:
    connection = MemoryDatabase().connect()
    prepare(connection)
    return connection


def written(folder: Path, some: Sequence[LedgerRow], *, name: str = NAME) -> Path:
    """As a process that was killed leaves it."""
    journal = Journal(folder, name)
    journal.append(some)
    (path,) = folder.glob("rows-*")
    journal.close(row.request_id for row in some)
    return path


def ids_in(connection: Connection) -> list[str]:
    return [str(row[0]) for row in connection.read("SELECT request_id FROM usage_ledger ORDER BY request_id")]


class FailsAfter:
    """A database that goes away after some transactions, as at a kill."""

    def __init__(self, inner: Connection, num_writes: int) -> None:
        self.inner, self.num_left = inner, num_writes

    def write(self, statements: Sequence[Statement]) -> None:
        if not self.num_left:
            raise DatabaseError("gone")
        self.num_left -= 1
        self.inner.write(statements)

    def read(self, sql: str, parameters: Parameters | None = None) -> list[Row]:
        return self.inner.read(sql, parameters)

    def close(self) -> None:
        self.inner.close()


def test_rows_come_back_as_they_were_and_the_file_is_gone(tmp_path: Path) -> None:
    path = written(tmp_path, rows(3))
    assert path.stat().st_mode & 0o777 == 0o600
    connection = prepared()
    assert replay_journals(tmp_path, NAME, connection) == Replayed(num_rows=3)
    columns = ", ".join(LedgerRow.__dataclass_fields__)
    found = connection.read(f"SELECT {columns} FROM usage_ledger ORDER BY request_id")
    names = LedgerRow.__dataclass_fields__
    assert [LedgerRow(**dict(zip(names, row, strict=True))) for row in found] == rows(3)  # type: ignore[arg-type]
    assert replay_journals(tmp_path, NAME, connection) == Replayed() and not list(tmp_path.iterdir())


@pytest.mark.parametrize("num_commits", [0, 1, 2])
def test_a_replay_that_is_cut_short_is_repeated_without_doubling(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_commits: int
) -> None:
    monkeypatch.setattr(journal_module, "ROWS_PER_COMMIT", 2)
    written(tmp_path, rows(5))
    connection = prepared()
    with pytest.raises(DatabaseError):
        replay_journals(tmp_path, NAME, FailsAfter(connection, num_commits))
    assert len(ids_in(connection)) == 2 * num_commits
    replay_journals(tmp_path, NAME, connection)
    assert ids_in(connection) == [f"r{i}" for i in range(5)]


def test_what_the_ledger_has_already_is_not_changed(tmp_path: Path) -> None:
    written(tmp_path, [replace(ROW, outcome="finished")])
    connection = prepared()
    connection.write([put_rows([replace(ROW, outcome="failed")])])
    replay_journals(tmp_path, NAME, connection)
    assert connection.read("SELECT outcome FROM usage_ledger") == [("failed",)]


@given(st.integers(0, 2**31), st.binary(max_size=40), st.integers(0, 30))
@settings(max_examples=60, deadline=None)
def test_bytes_that_are_cut_or_overwritten_cost_no_other_row(
    tmp_path_factory: pytest.TempPathFactory, place: int, garbage: bytes, cut: int
) -> None:
    folder = tmp_path_factory.mktemp("journal")
    path = written(folder, rows(6))
    content = path.read_bytes()
    lines = content.splitlines(keepends=True)
    at = place % len(content)
    broken = content[:at] + garbage + content[at + len(garbage) :]
    broken = broken[: len(broken) - cut]
    path.write_bytes(broken)
    untouched = {f"r{i}" for i, line in enumerate(lines[1:]) if line in broken.splitlines(keepends=True)}
    connection = prepared()
    done = replay_journals(folder, NAME, connection)
    assert set(ids_in(connection)) == untouched
    aside = list(folder.glob("*.corrupt"))
    assert (done.num_corrupt_lines > 0) == bool(aside)
    if untouched != {f"r{i}" for i in range(6)} and broken and not broken.endswith(b"\n"):
        assert aside, "a broken tail is kept, not dropped"
    assert not list(folder.glob("rows-*.jsonl"))


def test_the_rows_of_a_living_process_are_left_alone(tmp_path: Path) -> None:
    living = Journal(tmp_path, NAME)
    living.append(rows(1))
    connection = prepared()
    assert replay_journals(tmp_path, NAME, connection) == Replayed()
    living.append(rows(1, start=1))
    living.close(["r0", "r1"])
    assert replay_journals(tmp_path, NAME, connection).num_rows == 2


def test_rows_of_another_database_wait_for_it(tmp_path: Path) -> None:
    written(tmp_path, rows(1), name="another")
    connection = prepared()
    assert replay_journals(tmp_path, NAME, connection) == Replayed() and ids_in(connection) == []
    assert replay_journals(tmp_path, "another", connection).num_rows == 1


def test_once_the_database_has_all_rows_nothing_is_left(tmp_path: Path) -> None:
    journal = Journal(tmp_path, NAME)
    journal.append(rows(2))
    journal.kept(["r0"])
    assert list(tmp_path.iterdir())
    journal.kept(["r1"])
    assert not list(tmp_path.iterdir())
    journal.append(rows(1, start=2))
    journal.close(["r2"])
    assert replay_journals(tmp_path, NAME, prepared()).num_rows == 1


def test_it_is_bounded_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "MAX_JOURNAL_BYTES", 2_000)
    journal = Journal(tmp_path, NAME)
    journal.append(rows(2))
    with pytest.raises(JournalError, match="2000 bytes"):
        journal.append(rows(20))
    journal.close(["r0"])
    assert replay_journals(tmp_path, NAME, prepared()).num_rows == 2


def test_a_folder_that_cannot_be_written_is_an_error_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(JournalError, match="file"):
        Journal(tmp_path / "file" / "journal", NAME).append(rows(1))


def test_a_row_is_in_the_ledger_once_when_the_database_had_it_after_all(tmp_path: Path) -> None:
    connection = SqliteDatabase(tmp_path / "relevo.db").connect()
    prepare(connection)
    written(tmp_path / "journal", rows(2))
    connection.write([put_rows(rows(1))])
    replay_journals(tmp_path / "journal", NAME, connection)
    assert ids_in(connection) == ["r0", "r1"]


@pytest.mark.parametrize("is_last", [False, True])
@pytest.mark.parametrize("what", ["removed", "replaced", "cut short"])
def test_a_file_that_another_process_takes_away_is_written_again(tmp_path: Path, what: str, is_last: bool) -> None:
    """With the rows that were in it: before the next row, or when the process ends."""
    journal = Journal(tmp_path, NAME)
    journal.append(rows(2))
    (path,) = tmp_path.glob("rows-*")
    if what == "cut short":
        os.truncate(path, 10)
    else:
        path.unlink()
    if what == "replaced":
        path.write_text("another's")
    if not is_last:
        journal.append(rows(1, start=2))
    journal.close(["r0", "r1", "r2"])
    connection = prepared()
    replay_journals(tmp_path, NAME, connection)
    assert ids_in(connection) == (["r0", "r1"] if is_last else ["r0", "r1", "r2"])
    if what == "replaced":
        assert "another's" in path.with_suffix(".corrupt").read_text(), "what is not ours is not removed"


def test_a_disk_that_was_full_once_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(tmp_path, NAME)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    for broken in ("pwrite", "rename"):
        with monkeypatch.context() as patch:
            patch.setattr(*((os, "pwrite", full) if broken == "pwrite" else (Path, "rename", full)))
            with pytest.raises(JournalError, match="no space left"):
                journal.append(rows(1))
        journal.append(rows(1))
        journal.close(["r0"])
        connection = prepared()
        assert replay_journals(tmp_path, NAME, connection).num_rows == 1 and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "text",
    [b"[" * 100_000, b"{", b"\xff", b'{"request_id":NaN}', b'"text"',
     json.dumps(asdict(replace(ROW, prompt_tokens=2**63))).encode()],
    ids=["deep", "cut", "not UTF-8", "no number", "no object", "too large a number"],
)  # fmt: skip
def test_a_line_with_the_right_sum_that_is_no_row_stops_no_start(tmp_path: Path, text: bytes) -> None:
    path = written(tmp_path, rows(2))
    with path.open("ab") as file:
        file.write(b"%08x %s\n" % (zlib.crc32(text), text))
    connection = prepared()
    assert replay_journals(tmp_path, NAME, connection) == Replayed(num_rows=2, num_corrupt_lines=1)
    assert ids_in(connection) == ["r0", "r1"]


def test_what_is_no_file_is_neither_waited_for_nor_followed(tmp_path: Path) -> None:
    path = written(tmp_path, rows(1))
    os.mkfifo(tmp_path / "rows-pipe.jsonl")
    (tmp_path / "rows-folder.jsonl").mkdir()
    (tmp_path / "elsewhere").write_text("theirs")
    (tmp_path / "rows-link.jsonl").symlink_to(tmp_path / "elsewhere")
    with path.open("ab") as file:
        file.write(b"broken\n")
    path.with_suffix(".corrupt").symlink_to(tmp_path / "elsewhere")
    connection = prepared()
    replay_journals(tmp_path, NAME, connection)
    assert ids_in(connection) == ["r0"]
    assert (tmp_path / "elsewhere").read_text() == "theirs"


def test_a_folder_that_takes_no_row_is_found_before_there_is_one(tmp_path: Path) -> None:
    check_journal_folder(tmp_path / "new" / "journal")
    assert not list((tmp_path / "new" / "journal").iterdir())
    (tmp_path / "file").write_text("")
    with pytest.raises(JournalError, match=r"file.* cannot be written"):
        check_journal_folder(tmp_path / "file" / "journal")


def test_a_data_folder_that_was_moved_is_the_same_one(tmp_path: Path) -> None:
    assert name_within(tmp_path, str(tmp_path / "relevo.db")) == name_within(Path("/x"), "/x/relevo.db")
    for elsewhere in ("postgresql://host/name", str(tmp_path / "other" / "relevo.db"), "memory"):
        assert name_within(tmp_path, elsewhere) == elsewhere
