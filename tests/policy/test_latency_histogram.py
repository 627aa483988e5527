"""telemetry.latency_histogram: percentiles of counts are those of the samples."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from relevo.telemetry.latency import percentile
from relevo.telemetry.latency_histogram import LatencyHistogram

QUANTILES = (0.0, 0.5, 0.9, 0.99, 1.0)
durations = st.lists(st.integers(0, 2**50), min_size=1, max_size=60)


def of(samples_ns: list[int]) -> LatencyHistogram:
    histogram = LatencyHistogram()
    for sample_ns in samples_ns:
        histogram.add(sample_ns)
    return histogram


@given(durations)
def test_every_percentile_is_within_one_percent_of_the_samples_own(samples_ns: list[int]) -> None:
    """Red if buckets are wider, or if the interpolation is another one than telemetry.latency's."""
    exact = sorted(sample_ns / 1e9 for sample_ns in samples_ns)
    for q, told_s in zip(QUANTILES, of(samples_ns).percentiles_s(QUANTILES), strict=True):
        assert told_s is not None
        assert abs(told_s - percentile(exact, q)) <= 0.01 * percentile(exact, q)


@given(durations, durations)
def test_two_add_up_to_that_of_all(some: list[int], others: list[int]) -> None:
    merged = of(some)
    merged.merge(of(others).counts)
    assert merged == of(some + others)
    assert merged.num_samples == len(some) + len(others)


def test_memory_does_not_depend_on_how_much_is_counted() -> None:
    """Red if values beyond the largest bucket, or below none, make new ones."""
    rng = random.Random(1)
    histogram = of([round(2 ** rng.uniform(-2, 80)) for _ in range(200_000)])
    histogram.add(-5)
    assert len(histogram.counts) <= 2944
    assert histogram.num_samples == 200_001


def test_nothing_has_no_percentiles() -> None:
    assert LatencyHistogram().percentiles_s((0.5, 0.99)) == [None, None]
