"""Arrivals, lengths and prompts: means, bounds and exact token counts."""

from __future__ import annotations

import random
import statistics
from itertools import islice, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relevo.workload.arrivals import ArrivalKind, arrival_offsets, arrivals_until
from relevo.workload.lengths import (
    CdfLengths,
    FixedLength,
    LognormalLengths,
    UniformLengths,
    WeightedLengths,
    parse_lengths,
)
from relevo.workload.prompts import hashed_run, random_token_ids, text_of_length


def gaps(kind: ArrivalKind, rate: float, burstiness: float = 1.0) -> list[float]:
    offsets = list(islice(arrival_offsets(kind, rate, random.Random(7), burstiness=burstiness), 20_001))
    assert offsets[0] == 0.0
    return [later - earlier for earlier, later in pairwise(offsets)]


@pytest.mark.parametrize(
    ("kind", "burstiness", "variation"),
    [
        (ArrivalKind.CONSTANT, 1.0, 0.0),
        (ArrivalKind.POISSON, 1.0, 1.0),
        (ArrivalKind.POISSON, 9.0, 1.0),
        (ArrivalKind.GAMMA, 1.0, 1.0),
        (ArrivalKind.GAMMA, 0.25, 2.0),
        (ArrivalKind.GAMMA, 4.0, 0.5),
    ],
)
def test_rate_and_burstiness_are_what_was_asked_for(kind: ArrivalKind, burstiness: float, variation: float) -> None:
    """Red when shape and scale of the gamma gaps are swapped, or the rate is taken for a gap."""
    measured = gaps(kind, 4.0, burstiness)
    mean = statistics.fmean(measured)
    assert mean == pytest.approx(0.25, rel=0.05)
    assert statistics.pstdev(measured) / mean == pytest.approx(variation, rel=0.05, abs=1e-6)


def test_arrivals_are_reproducible_and_bounded() -> None:
    one = arrivals_until(arrival_offsets(ArrivalKind.POISSON, 10.0, random.Random(1)), 5.0)
    two = arrivals_until(arrival_offsets(ArrivalKind.POISSON, 10.0, random.Random(1)), 5.0)
    assert one == two
    assert max(one) < 5.0
    assert arrivals_until(arrival_offsets(ArrivalKind.CONSTANT, 2.0, random.Random(1)), 1.5) == [0.0, 0.5, 1.0]


@pytest.mark.parametrize(("rate", "burstiness"), [(0.0, 1.0), (-1.0, 1.0), (1.0, 0.0)])
def test_impossible_arrivals_are_refused_at_once(rate: float, burstiness: float) -> None:
    """Red when the check moves into the generator body, where it would only be met at the first request."""
    with pytest.raises(ValueError, match="above 0"):
        arrival_offsets(ArrivalKind.GAMMA, rate, random.Random(0), burstiness=burstiness)


def test_lengths_are_read_as_typed() -> None:
    assert parse_lengths("512") == FixedLength(512)
    assert parse_lengths("16-32") == UniformLengths(16, 32)
    assert parse_lengths("lognormal:600,2") == LognormalLengths(600.0, 2.0)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0",
        "-5",
        "abc",
        "8-4",
        "0-4",
        "1.5",
        "lognormal:",
        "lognormal:0,2",
        "lognormal:9",
        "9-",
        "99999999999",
        "lognormal:inf,2",
        "lognormal:nan,2",
        "lognormal:9,1e300",
    ],
)
def test_bad_lengths_say_what_to_write(text: str) -> None:
    with pytest.raises(ValueError, match="lognormal:600"):
        parse_lengths(text)


def test_lengths_stay_in_their_range() -> None:
    rng = random.Random(3)
    drawn = {UniformLengths(3, 6).draw(rng) for _ in range(300)}
    assert drawn == {3, 4, 5, 6}
    tail = sorted(LognormalLengths(100.0, 2.0).draw(rng) for _ in range(4001))
    assert tail[0] >= 1
    assert tail[2000] == pytest.approx(100, rel=0.1)
    assert tail[int(4001 * 0.8413)] == pytest.approx(200, rel=0.1)


def test_measured_frequencies_are_kept() -> None:
    """Red when frequencies are taken for cumulative ones, or a distribution function is off by one of its points."""
    rng = random.Random(3)
    weighted = [WeightedLengths([5, 9], [0.3, 0.4]).draw(rng) for _ in range(4000)]
    assert weighted.count(5) / 4000 == pytest.approx(0.75, abs=0.03)
    drawn = sorted(CdfLengths([100, 200, 1000], [0.5, 0.5, 1.0]).draw(rng) for _ in range(4000))
    assert drawn[0] >= 1 and drawn[-1] <= 1000
    assert not [length for length in drawn if 101 < length < 200]
    assert drawn[1000] == pytest.approx(50, abs=6)  # even from 0 to the first point
    assert drawn[3000] == pytest.approx(600, abs=40)


def test_hash_ids_decide_the_shared_prefix() -> None:
    vocabulary = range(100, 1000)
    one = hashed_run(20, [1, 2, 3], 8, vocabulary, seed=0)
    two = hashed_run(24, [1, 2, 4], 8, vocabulary, seed=0)
    other = hashed_run(20, [1, 2, 3], 8, vocabulary, seed=1)
    assert (len(one), len(two)) == (20, 24)
    assert one[:16] == two[:16]
    assert one[16:] != two[16:20]
    assert other != one
    assert len(hashed_run(30, [5], 8, vocabulary, seed=0)) == 30


def test_random_ids_come_from_the_vocabulary() -> None:
    assert set(random_token_ids(200, [3, 5, 8], random.Random(1))) == {3, 5, 8}


@given(st.integers(1, 300), st.integers(0, 40), st.integers(1, 3), st.integers(0, 2**32))
def test_text_has_the_exact_length_where_one_exists(wish: int, overhead: int, long_cost: int, seed: int) -> None:
    """A counter with a template overhead and words of several tokens; one-token words make every length possible."""

    def count(text: str) -> int:
        return overhead + sum(long_cost if len(word) > 6 else 1 for word in text.split())

    fitted = text_of_length(wish, count, random.Random(seed))
    assert fitted.num_tokens == count(fitted.text)
    if wish > overhead:
        assert fitted.num_tokens == wish
    else:
        assert fitted.num_tokens - overhead <= long_cost
