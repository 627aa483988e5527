"""Traffic of another kind is found by its first requests, and not by chance; lengths of answers that still run."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relevo.policy.scaling.mean_length import mean_length
from relevo.policy.scaling.new_kind import FEWEST, new_kind_from


def lengths(rng: Random, number: int, median: float) -> list[float]:
    return [median * rng.lognormvariate(0.0, 0.5) for _ in range(number)]


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize(("before", "after"), [(1600, 150), (34, 800)])
def test_ten_requests_of_another_kind_are_found_where_they_begin(seed: int, before: int, after: int) -> None:
    """Red when a minute of the kind before has to pass first."""
    rng = Random(seed)
    sizes = lengths(rng, 55, before) + lengths(rng, 10, after)
    assert abs(new_kind_from(sizes) - 55) <= 2


def test_one_kind_is_hardly_ever_taken_for_two() -> None:
    """Of two hundred minutes. Red when what chance makes begins a window anew, and releases a cool-down."""
    rng = Random(0)
    found = sum(new_kind_from(lengths(rng, 60, 500)) > 0 for _ in range(200))
    assert found <= 4


def test_long_windows_are_looked_at_in_part_and_the_place_is_right() -> None:
    rng = Random(1)
    sizes = lengths(rng, 15_000, 1600) + lengths(rng, 5_000, 150)
    assert abs(new_kind_from(sizes) - 15_000) <= 200


@given(st.lists(st.floats(1.0, 1e6), max_size=100))
def test_each_kind_has_enough_requests_and_equal_ones_are_one_kind(sizes: list[float]) -> None:
    found = new_kind_from(sizes)
    assert found == 0 or FEWEST <= found <= len(sizes) - FEWEST
    assert new_kind_from([7.0] * len(sizes)) == 0


def test_what_still_runs_counts_as_longer_than_it_is() -> None:
    """Red when the short answers, which end first, stand for all."""
    assert mean_length([10, 20, 30], []) == pytest.approx(20.0)
    assert mean_length([10], [10, 10, 10]) == pytest.approx(10.0)
    assert mean_length([], [40, 60, 100]) == pytest.approx(100.0), "none has ended: at least that"
    rng = Random(2)
    true = [rng.randrange(50, 250) for _ in range(4000)]
    so_far = [rng.randrange(0, 300) for _ in true]
    ended = [length for length, now in zip(true, so_far, strict=True) if length <= now]
    running = [now for length, now in zip(true, so_far, strict=True) if length > now]
    assert mean_length(ended, running) == pytest.approx(149.5, rel=0.05)
    assert sum(ended) / len(ended) < 135, "which a mean of those that ended does not say"


@given(st.lists(st.integers(1, 1000), max_size=30), st.lists(st.integers(0, 1000), max_size=30))
def test_a_mean_length_is_between_none_and_the_longest(ended: list[int], running: list[int]) -> None:
    assert 0.0 <= mean_length(ended, running) <= max([*ended, *running, 0]) + 1e-6
