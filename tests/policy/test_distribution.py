"""Quantiles of weighted samples, of which some never came: as by hand, and as of the same samples written out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relevo.telemetry.distribution import MIN_SAMPLES_BEYOND, QUANTILES, distribution
from relevo.telemetry.latency import RequestTimes, Slo, percentile


def test_by_hand() -> None:
    told = distribution(list(range(1, 201)))
    assert (told.count, told.num_missing, told.mean, told.max) == (200, 0, 100.5, 200.0)
    assert told.value("p50") == pytest.approx(100.5)
    assert told.value("p90") == pytest.approx(180.1)
    assert told.value("p95") == pytest.approx(190.05)


def test_a_quantile_needs_ten_samples_beyond_it() -> None:
    """Red when a tail is told of a handful of samples."""
    assert distribution([1.0] * 19).value("p50") is None
    assert distribution([1.0] * 20).value("p50") == 1.0
    assert distribution([1.0] * 99).quantiles["p90"] == "needs 100 samples, there are 99"
    assert distribution([1.0] * 100).value("p90") == 1.0
    assert distribution([1.0] * 999).quantiles["p99"] == "needs 1,000 samples, there are 999"
    assert distribution([1.0] * 1000).value("p99") == 1.0


def test_what_never_came_is_the_slowest() -> None:
    """Red when a server looks fast because it turned the slow requests away."""
    told = distribution([1.0] * 180, num_missing=20)
    assert told.value("p50") == 1.0
    assert told.quantiles["p90"] == "20 of 200 samples never came"
    assert told.quantiles["p95"] == "20 of 200 samples never came"
    assert (told.mean, told.max) == (1.0, 1.0)
    assert told.to_json()["p90"] is None
    assert told.to_json()["untold"]["p99"] == "needs 1,000 samples, there are 200"
    nothing = distribution([], num_missing=50)
    assert (nothing.mean, nothing.max, nothing.value("p50")) == (None, None, None)
    assert distribution([]).quantiles["p50"] == "needs 20 samples, there are 0"


@given(st.lists(st.tuples(st.floats(0, 1e6), st.integers(0, 40)), min_size=1, max_size=60))
def test_weights_count_as_repetitions(samples: list[tuple[float, int]]) -> None:
    expanded = sorted(value for value, weight in samples for _ in range(weight))
    told = distribution([value for value, _ in samples], [weight for _, weight in samples])
    assert told.count == len(expanded)
    for q in QUANTILES:
        value = told.value(f"p{q * 100:g}")
        if round(len(expanded) * (1 - q), 6) < MIN_SAMPLES_BEYOND:
            assert value is None
        else:
            assert value == pytest.approx(percentile(expanded, q))


def test_an_slo_may_limit_the_time_per_token() -> None:
    second = 10**9
    times = RequestTimes(0, [second, 2 * second, 4 * second], 4 * second)
    assert Slo(tpot_s=1.5).is_met(times, times.tpot_s)
    assert not Slo(tpot_s=1.4).is_met(times, times.tpot_s)
    assert Slo(tpot_s=1.4).is_met(times, None)  # one token has no time per token
    assert not Slo(ttft_s=0.9).is_met(times, times.tpot_s)
