"""The limit kernels do what they are timed for: read every byte, compute every product, on every path and core set."""

from __future__ import annotations

import os

import pytest

_native = pytest.importorskip("relevo_native._native")

CORES = sorted(os.sched_getaffinity(0))[:2]


@pytest.mark.parametrize("path", _native.available_paths())
@pytest.mark.parametrize("operand", ["f32", "bf16", "int8", "int4"])
@pytest.mark.parametrize("cores", [CORES[:1], CORES])
def test_products_are_counted(path: str, operand: str, cores: list[int]) -> None:
    """The kernel sums products of ones and the caller compares: red when a compiler leaves some of them out."""
    for rounds in (1, 3, 70_000):  # beyond a float's counting, were the sums never emptied
        seconds, operations = _native.limit_multiply(path, operand, rounds, cores, 2)
        assert len(seconds) == 2 and min(seconds) > 0
        assert operations % (2 * rounds * len(cores)) == 0 and operations > 0


@pytest.mark.parametrize("path", _native.available_paths())
@pytest.mark.parametrize("num_bytes", [1, 8, 4096, 256 * 1024 + 24, 3_000_001])
def test_all_of_the_memory_is_read(path: str, num_bytes: int) -> None:
    """The kernel sums what was written and the caller compares; sizes that fill no last piece, line or vector."""
    seconds = _native.limit_read(path, num_bytes, CORES, 3)
    assert len(seconds) == 3 and min(seconds) > 0


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: _native.limit_multiply("", "f64", 1, [0], 1), "not one of f32, bf16, int8, int4"),
        (lambda: _native.limit_multiply("", "f32", 0, [0], 1), "rounds"),
        (lambda: _native.limit_multiply("", "f32", 1, [], 1), "at least one core"),
        (lambda: _native.limit_multiply("sse9", "f32", 1, [0], 1), "sse9"),
        (lambda: _native.limit_read("", 0, [0], 1), "num_bytes"),
        (lambda: _native.limit_read("", 1, [0], 0), "repeats"),
    ],
)
def test_what_cannot_be_measured_is_refused(call: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        call()  # type: ignore[operator]
