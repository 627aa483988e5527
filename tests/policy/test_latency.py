"""Latency words against numpy and worked examples."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relevo.telemetry.latency import RequestTimes, percentile, summarise

finite = st.floats(-1e6, 1e6)


@given(st.lists(finite, min_size=1, max_size=50), st.floats(0, 1))
def test_percentile_is_numpys_linear_interpolation(values: list[float], q: float) -> None:
    assert percentile(sorted(values), q) == pytest.approx(float(np.quantile(values, q)), abs=1e-6)


@given(st.lists(finite, min_size=1, max_size=50))
def test_summary(values: list[float]) -> None:
    summary = summarise(iter(values))
    assert summary.count == len(values)
    assert summary.mean == pytest.approx(float(np.mean(values)), abs=1e-6)
    assert summary.p50 <= summary.p90 <= summary.p95 <= summary.p99 <= summary.max == max(values)
    assert summary.p95 == pytest.approx(float(np.quantile(values, 0.95)), abs=1e-6)


@pytest.mark.parametrize(("values", "q"), [([], 0.5), ([1.0], -0.1), ([1.0], 90)])
def test_percentile_refuses_what_has_no_answer(values: list[float], q: float) -> None:
    """`q` is a fraction: red if 90 is silently taken for 0.9 or for the maximum."""
    with pytest.raises(ValueError, match="percentile"):
        percentile(values, q)
    with pytest.raises(ValueError, match="percentile"):
        summarise([])


def test_words() -> None:
    """Accepted at 1 s, tokens at 1.5, 1.6, 1.6 and 1.9 s, ended at 2 s. TPOT counts to the end, ITL to the last one."""
    times = RequestTimes(10**9, [1_500_000_000, 1_600_000_000, 1_600_000_000, 1_900_000_000], 2 * 10**9)
    assert times.ttft_s == pytest.approx(0.5)
    assert times.itl_s == pytest.approx([0.1, 0.0, 0.3])
    assert times.e2e_s == pytest.approx(1.0)
    assert times.tpot_s == pytest.approx(0.5 / 3)
    assert times.decode_s == pytest.approx(0.4)


def test_words_without_an_answer_are_none() -> None:
    nothing = RequestTimes(5, [], 9)
    assert (nothing.ttft_s, nothing.itl_s, nothing.tpot_s, nothing.decode_s) == (None, [], None, None)
    one_token = RequestTimes(5, [7], 9)
    assert (one_token.ttft_s, one_token.itl_s, one_token.tpot_s, one_token.decode_s) == (2e-9, [], None, 0.0)
    running = RequestTimes(5, [7, 8])
    assert (running.e2e_s, running.tpot_s) == (None, None)
