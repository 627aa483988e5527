"""Limits of cores, kept over starts: the best of a few measurements, and a file that can be anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from relevo.build.known_limits import MAX_MEASUREMENTS, best_known, cache_folder
from relevo.core.events import UNKNOWN_LIMITS, WorkerLimits


class Measure:
    def __init__(self) -> None:
        self.num_calls = 0

    def __call__(self) -> WorkerLimits:
        """Products come out lower from time to time, reads higher."""
        self.num_calls += 1
        return WorkerLimits(product_ops_per_s=100.0 / self.num_calls, read_bytes_per_s=10.0 * self.num_calls)


def test_the_best_of_a_few_starts_counts_and_then_nothing_is_measured(tmp_path: Path) -> None:
    """Red when a start beside others, which measures low, makes later utilisation too high."""
    measure = Measure()
    for number in range(1, MAX_MEASUREMENTS + 4):
        known = best_known(tmp_path / "new", "1 core", measure)
        most = min(number, MAX_MEASUREMENTS)
        assert known == WorkerLimits(product_ops_per_s=100.0, read_bytes_per_s=10.0 * most)
    assert measure.num_calls == MAX_MEASUREMENTS
    best_known(tmp_path / "new", "2 cores", measure)
    assert measure.num_calls == MAX_MEASUREMENTS + 1


@pytest.mark.parametrize("content", [b"", b"[]", b"\xff\xfe", b'{"a": {"product_ops_per_s": "x"}}', b"0" * (2 << 20)])
def test_a_file_that_is_none_of_ours_is_written_anew(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "machine-limits.json").write_bytes(content)
    measure = Measure()
    for _ in range(2):
        assert best_known(tmp_path, "1 core", measure).product_ops_per_s == 100.0
    assert best_known(tmp_path, "1 core", measure).read_bytes_per_s == 30.0


def test_a_folder_that_cannot_be_written_costs_the_measurement_only(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    measure = Measure()
    for _ in range(2):
        assert best_known(tmp_path / "file", "1 core", measure).product_ops_per_s is not None
    assert best_known(None, "1 core", measure).read_bytes_per_s == 30.0


def test_what_could_not_be_measured_is_not_kept(tmp_path: Path) -> None:
    assert best_known(tmp_path, "1 core", lambda: UNKNOWN_LIMITS) == UNKNOWN_LIMITS
    assert list(tmp_path.iterdir()) == []


def test_the_file_does_not_grow_without_end(tmp_path: Path) -> None:
    for number in range(100):
        best_known(tmp_path, f"{number} cores", Measure())
    measure = Measure()
    best_known(tmp_path, "99 cores", measure)
    assert measure.num_calls == 1
    assert (tmp_path / "machine-limits.json").read_text().count("num_measured") == 64
    assert len(list(tmp_path.iterdir())) == 1


def test_the_cache_folder_is_the_users(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "relevo"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "relevo"
