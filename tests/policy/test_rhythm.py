"""Bursts that come and go are expected again; what chance makes of even arrivals, or a rise that stays, is none."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relevo.policy.scaling.demand import Demand, Sample, dispersion, has_gone, is_alike, rate_of_late
from relevo.policy.scaling.rhythm import SLOT_S, Rhythm, rhythm_of

WINDOW_S = 60.0


def arrivals(rng: Random, *pieces: tuple[float, float]) -> list[float]:
    """Poisson, of pieces of so many seconds at so many a second."""
    times, begin_s = list[float](), 0.0
    for seconds, rate in pieces:
        at_s = begin_s + rng.expovariate(rate)
        while at_s < begin_s + seconds:
            times.append(at_s)
            at_s += rng.expovariate(rate)
        begin_s += seconds
    return times


@pytest.mark.parametrize("rate", [0.5, 2.0, 20.0])
def test_even_arrivals_have_no_rhythm(rate: float) -> None:
    """Red when chance is taken for bursts: then steady traffic is simulated as something else, now and then."""
    found = [rhythm_of(arrivals(Random(seed), (WINDOW_S, rate)), 0.0, WINDOW_S) for seed in range(200)]
    assert sum(each is not None for each in found) <= 4


def test_a_rise_that_is_still_there_is_no_burst() -> None:
    """Red when more traffic than before is expected to go away by itself."""
    for seed in range(50):
        assert rhythm_of(arrivals(Random(seed), (45.0, 2.0), (15.0, 12.0)), 0.0, WINDOW_S) is None


def test_bursts_that_went_come_again_as_strong() -> None:
    """As in a minute of the workload that has bursts: tenfold for three of thirty seconds. Red when it is simulated
    evenly, or noise is added to what was noise already."""
    for seed in range(20):
        rng = Random(seed)
        times = arrivals(rng, *[(13.5, 1.0), (3.0, 10.0), (13.5, 1.0)] * 2)
        rhythm = rhythm_of(times, 0.0, WINDOW_S)
        assert rhythm is not None
        rate, even_s, again = len(times) / WINDOW_S, 0.0, list[float]()
        while even_s < 20 * WINDOW_S:
            even_s += rng.expovariate(rate)
            again.append(rhythm.time_of(even_s))
        assert dispersion(again, SLOT_S) == pytest.approx(dispersion(times, SLOT_S), rel=0.6)


@given(
    rates=st.lists(st.floats(0.1, 10.0), min_size=1, max_size=30),
    even_s=st.lists(st.floats(0.0, 500.0), min_size=2, max_size=30),
)
@settings(max_examples=200, deadline=None)
def test_time_goes_forward_and_a_cycle_takes_as_long_as_it_would(rates: list[float], even_s: list[float]) -> None:
    """Red when requests change places, or the mean rate does."""
    rhythm = Rhythm(tuple(rate * len(rates) / sum(rates) for rate in rates))
    times = [rhythm.time_of(each) for each in sorted(even_s)]
    assert all(before <= after + 1e-6 for before, after in pairwise(times))
    cycle_s = len(rates) * SLOT_S
    for at_s in even_s:
        assert rhythm.time_of(at_s + cycle_s) == pytest.approx(rhythm.time_of(at_s) + cycle_s, abs=1e-6)
    assert rhythm.time_of(10 * cycle_s) == pytest.approx(10 * cycle_s)


def test_an_even_rhythm_changes_no_time() -> None:
    rhythm = Rhythm((1.0,) * 5)
    assert [rhythm.time_of(at_s) for at_s in (0.0, 0.3, 9.9, 31.7)] == pytest.approx([0.0, 0.3, 9.9, 31.7])


def demand(rate: float, *, burstiness: float = 1.0, rhythm: Rhythm | None = None) -> Demand:
    return Demand(
        requests_per_s=rate,
        samples=(Sample(100, 10),),
        longest_tokens=110,
        burstiness=burstiness,
        rhythm=rhythm,
    )


def test_traffic_with_bursts_is_not_like_traffic_without() -> None:
    bursts = Rhythm((0.5, 1.5))
    one, other, wilder = (demand(2.0, burstiness=b, rhythm=bursts) for b in (4.0, 5.0, 9.0))
    assert is_alike(one, other, WINDOW_S)
    assert not is_alike(one, wilder, WINDOW_S) and not is_alike(one, demand(2.0, burstiness=4.0), WINDOW_S)


def test_a_rush_is_over_when_far_less_comes_than_was_asked_about() -> None:
    assert has_gone(demand(8.0), 3.0, demand(3.0)) and has_gone(demand(8.0), 3.0, None)
    assert not has_gone(demand(8.0), 3.0, demand(6.5)), "it goes on"
    assert not has_gone(demand(8.0), 8.0, demand(3.0)), "it was no rush"


@pytest.mark.parametrize(("num", "span_s", "rate"), [(50, 5.0, 10.0), (9, 5.0, 0.65), (40, 14.0, 2.67)])
def test_a_burst_counts_while_it_grows(num: int, span_s: float, rate: float) -> None:
    """Half a request a second for a minute, then so many within the last seconds. Red when a quarter of the window has
    to have passed first, or a few requests are a burst."""
    calm = [2.0 * place for place in range(30)]
    burst = [span_s * (place + 0.5) / num for place in range(num)]
    assert rate_of_late([*calm, *burst], 60.0) == pytest.approx(rate, rel=0.25)
