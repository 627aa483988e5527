"""What a soak finds wrong: ledger rows that do not fit what clients saw, and memory that grows."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

import pytest

from relevo.bench.soak.memory_track import MemoryTrack, resident_bytes, slope
from relevo.bench.soak.report import Asked, compare_with_ledger
from relevo.bench.soak.run import killable

PATH = "/v1/completions"


def ledger(folder: Path, *rows: tuple[str, str, int]) -> Path:
    with sqlite3.connect(folder / "relevo.db") as connection:
        connection.execute("CREATE TABLE usage_ledger (response_id TEXT, outcome TEXT, completion_tokens INTEGER)")
        connection.executemany("INSERT INTO usage_ledger VALUES (?, ?, ?)", rows)
    return folder / "relevo.db"


def whole(name: str, num_tokens: int = 5) -> Asked:
    return Asked(name, "question", PATH, 200, has_begun=True, is_complete=True, num_completion_tokens=num_tokens)


def test_what_clients_saw_and_the_ledger_says_agree(tmp_path: Path) -> None:
    left, never_begun = Asked("b", "leaver", PATH, 200, has_begun=True), Asked("c", "leaver", PATH)
    refused = Asked("d", "nonsense", PATH, 400, has_begun=True)
    database = ledger(tmp_path, ("cmpl-a", "finished", 5), ("cmpl-b", "aborted", 2))
    assert compare_with_ledger([whole("a"), left, never_begun, refused], database) == []


@pytest.mark.parametrize(
    ("rows", "asked", "said"),
    [
        ([], whole("a"), "0 rows"),
        ([("cmpl-a", "finished", 5)] * 2, whole("a"), "2 rows"),
        ([("cmpl-a", "aborted", 5)], whole("a"), "aborted in the ledger"),
        ([("cmpl-a", "finished", 4)], whole("a"), "4 in the ledger"),
        ([], Asked("a", "leaver", PATH, 200, has_begun=True), "0 rows"),
        ([("cmpl-a", "failed", 0)], Asked("a", "nonsense", PATH, 400, has_begun=True), "1 rows"),
        ([("cmpl-z", "finished", 1)], Asked("a", "leaver", PATH), "was not asked for"),
    ],
)
def test_rows_that_do_not_fit_are_told(
    tmp_path: Path, rows: list[tuple[str, str, int]], asked: Asked, said: str
) -> None:
    """Red when a lost, doubled or wrong row passes."""
    (found,) = compare_with_ledger([asked], ledger(tmp_path, *rows))
    assert said in found


def test_a_slope_is_that_of_the_line() -> None:
    assert slope([(t, 1000 + 3 * t) for t in range(10)]) == pytest.approx(3.0)


def test_warm_up_is_not_counted_and_a_short_life_has_no_slope() -> None:
    track = MemoryTrack()
    for at_s in range(40):
        track.look(float(at_s), {os.getpid(): "me"})
    own = track.tracks[os.getpid()]
    own.resident_bytes = [10_000_000 * min(t, 20) for t in range(40)]
    track.end(20.0)
    assert own.slope_mb_per_h == pytest.approx(0.0) and own.counted_s == 19.0
    own.slope_mb_per_h = None
    track.end(38.0)
    assert own.slope_mb_per_h is None


def test_a_process_that_is_gone_has_no_memory() -> None:
    assert resident_bytes(2**22 + 1) is None
    assert (resident_bytes(os.getpid()) or 0) > 1_000_000


def test_one_worker_of_each_role_lives_through_where_there_are_several() -> None:
    """Red when no process of a kind is old enough at the end to tell whether its memory grows."""
    assert killable(["decode-1", "prefill-0", "decode-0", "prefill-1"]) == ["decode-0", "prefill-0"]
    assert killable(["prefill-0", "decode-0"]) == ["decode-0", "prefill-0"]
    assert killable(["unified-2", "unified-0", "unified-1"]) == ["unified-0", "unified-1"]
