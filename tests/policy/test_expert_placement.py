"""Experts on ranks: red when one is nowhere or twice on a rank, when copies make the fullest rank fuller, when numbers
of experts decide how full it is, or when experts move for nothing."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relevo.policy.perf.expert_placement import ExpertWaits, Placement, expert_waits, in_order, place_experts

LOADS = st.lists(st.integers(0, 1000).map(float), min_size=1, max_size=40)
RANKS = st.integers(1, 8)
COPIES = st.integers(0, 40)


def placed(loads: list[float], num_ranks: int, num_redundant: int) -> Placement:
    return place_experts(loads, in_order(len(loads), num_ranks), num_redundant, least_gain=0.0)


@given(LOADS, RANKS, COPIES)
def test_every_expert_is_somewhere_and_nowhere_twice(loads: list[float], num_ranks: int, num_redundant: int) -> None:
    found = placed(loads, num_ranks, num_redundant)
    assert len(found.ranks) == len(loads)
    for holders in found.ranks:
        assert holders and list(holders) == sorted(set(holders)) and set(holders) <= set(range(num_ranks))
    num_copies = sum(map(len, found.ranks)) - len(loads)
    assert num_copies <= num_redundant
    most = max(len(found.experts_of(rank)) for rank in range(num_ranks))
    assert most <= -(-(len(loads) + num_redundant) // num_ranks), "more than a rank has room for"
    assert sum(found.rank_loads(loads)) == pytest.approx(sum(loads))


@given(LOADS, RANKS, COPIES)
def test_copies_make_the_fullest_rank_no_fuller(loads: list[float], num_ranks: int, num_redundant: int) -> None:
    fullest = placed(loads, num_ranks, num_redundant).fullest(loads)
    assert fullest <= placed(loads, num_ranks, 0).fullest(loads) * (1 + 1e-9)
    assert fullest <= in_order(len(loads), num_ranks).fullest(loads) * (1 + 1e-9)
    assert fullest >= sum(loads) / num_ranks * (1 - 1e-9)


@given(st.lists(st.integers(0, 1000).map(float), min_size=1, max_size=40), RANKS, COPIES, st.integers())
def test_how_experts_are_numbered_does_not_matter(
    loads: list[float], num_ranks: int, num_redundant: int, seed: int
) -> None:
    """From where nothing is placed yet: what ranks hold at first follows from the numbers."""
    turned = random.Random(seed).sample(range(len(loads)), len(loads))
    nowhere = Placement(tuple((0,) * (num_redundant + 2) for _ in loads), num_ranks)
    one = place_experts(loads, nowhere, num_redundant)
    other = place_experts([loads[expert] for expert in turned], nowhere, num_redundant)
    assert sorted(one.rank_loads(loads)) == pytest.approx(
        sorted(other.rank_loads([loads[expert] for expert in turned]))
    )


@given(LOADS, RANKS, COPIES)
def test_what_was_placed_stays_under_the_same_load(loads: list[float], num_ranks: int, num_redundant: int) -> None:
    found = placed(loads, num_ranks, num_redundant)
    assert place_experts(loads, found, num_redundant) is found


def test_experts_move_for_a_gain_that_is_worth_it() -> None:
    current = in_order(4, 2)
    assert place_experts([10.0, 10.0, 10.0, 9.0], current, 0) is current
    assert place_experts([10.0, 9.8, 9.7, 9.7], current, 0) is current, "a gain of one in a hundred"
    assert place_experts([10.0, 9.0, 1.0, 0.0], current, 0).rank_loads([10.0, 9.0, 1.0, 0.0]) == [10.0, 10.0]


def test_copies_that_there_is_no_room_for_go() -> None:
    both = Placement(((0, 1), (0,), (1,), (1,)), 2)
    found = place_experts([8.0, 4.0, 2.0, 2.0], both, 0)
    assert [len(holders) for holders in found.ranks] == [1, 1, 1, 1]


@pytest.mark.parametrize(
    ("loads", "num_ranks", "num_redundant", "imbalance"),
    [
        ([1.0] * 8, 4, 0, 1.0),
        ([4.0, 1.0, 1.0, 1.0, 1.0], 2, 0, 1.25),  # three places on each rank, so one goes with the hot one
        ([7.0, 1.0, 1.0, 1.0], 2, 0, 1.6),  # the hot one and one more: ranks have two places
        ([7.0, 1.0, 1.0, 1.0], 2, 2, 1.0),  # the hot one is on both, and one other
        ([90.0, 2.0, 2.0, 2.0, 1.0, 1.0, 1.0, 1.0], 4, 4, 1.02),
        ([0.0] * 8, 4, 4, 1.0),
    ],
)
def test_examples(loads: list[float], num_ranks: int, num_redundant: int, imbalance: float) -> None:
    mean = sum(loads) / num_ranks
    assert placed(loads, num_ranks, num_redundant).fullest(loads) == pytest.approx(imbalance * mean, rel=0.021)


def test_ranks_wait_for_the_fullest_in_every_layer() -> None:
    layers = [[6.0, 2.0, 1.0, 1.0], [1.0, 1.0, 4.0, 4.0]]
    assert expert_waits(layers, 2, 0) == ExpertWaits(in_order=16 / 10, placed=12 / 10)
    assert expert_waits(layers, 2, 2).placed == 1.0
    assert expert_waits([[0.0, 0.0]], 2, 0) == ExpertWaits(1.0, 1.0)
