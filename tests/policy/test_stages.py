"""Layers become stages: red when a layer is left out or moves, or when another cut has a smaller fullest stage."""

from __future__ import annotations

from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relevo.policy.perf.stages import even_stages, roomiest_stages


def fullest(sizes: list[float], ends: tuple[float, float], stages: list[range]) -> float:
    held = [sum(sizes[stage.start : stage.stop]) for stage in stages]
    held[0] += ends[0]
    held[-1] += ends[1]
    return max(held)


def cuts(num_layers: int, num_stages: int) -> list[list[range]]:
    inner = combinations(range(1, num_layers), num_stages - 1)
    return [[range(first, last) for first, last in pairwise((0, *each, num_layers))] for each in inner]


@given(
    st.lists(st.integers(0, 100), min_size=1, max_size=7),
    st.tuples(st.integers(0, 150), st.integers(0, 150)),
    st.integers(1, 7),
)
def test_no_other_cut_has_a_smaller_fullest_stage(sizes: list[int], ends: tuple[int, int], num_stages: int) -> None:
    num_stages = min(num_stages, len(sizes))
    stages = even_stages([float(size) for size in sizes], ends, num_stages)
    assert len(stages) == num_stages
    assert all(len(stage) >= 1 for stage in stages)
    assert [layer for stage in stages for layer in stage] == list(range(len(sizes)))
    best = min(fullest(sizes, ends, cut) for cut in cuts(len(sizes), num_stages))
    assert fullest(sizes, ends, stages) == best


@pytest.mark.parametrize(
    ("sizes", "ends", "num_stages", "lengths"),
    [
        ([10.0] * 30, (0.0, 0.0), 2, [15, 15]),
        ([10.0] * 30, (0.0, 60.0), 2, [18, 12]),  # the output layer is worth six
        ([10.0] * 30, (60.0, 60.0), 3, [8, 14, 8]),
        ([1.0, 1.0, 1.0, 9.0], (0.0, 0.0), 2, [3, 1]),
        ([5.0, 5.0], (1.0, 100.0), 2, [1, 1]),
        ([5.0, 5.0], (1.0, 100.0), 1, [2]),
    ],
)
def test_examples(sizes: list[float], ends: tuple[float, float], num_stages: int, lengths: list[int]) -> None:
    assert [len(stage) for stage in even_stages(sizes, ends, num_stages)] == lengths


def test_room_for_tokens_counts_more_than_even_weights() -> None:
    """A layer whose cache is three times as wide is worth more than its weights."""
    assert even_stages([4.0] * 4, (0.0, 0.0), 2) == [range(2), range(2, 4)]
    assert roomiest_stages([4.0] * 4, (0.0, 0.0), [3.0, 1.0, 1.0, 1.0], 2, 100.0) == [range(1), range(1, 4)]


def test_what_does_not_fit_is_cut_as_even_as_may_be() -> None:
    assert roomiest_stages([4.0] * 4, (0.0, 0.0), [1.0] * 4, 2, 3.0) == [range(2), range(2, 4)]
