"""How long the line may be in an overload, what is one, and when it is over."""

from __future__ import annotations

import pytest

from relevo.policy.admission.overload_detector import IDLE_FRACTION, OverloadDetector, enough_waiting

S = 1_000_000_000
MAX_TTFT_S = 3.0
DRAIN = 1000.0  # tokens per second


def loaded(load: float, for_s: float, line: OverloadDetector | None = None, from_s: float = 0.0) -> OverloadDetector:
    """Requests of 100 tokens that all had to wait, ten of them a second at a load of 1."""
    line = line or OverloadDetector()
    for index in range(round(for_s * 10 * load)):
        line.comes(100, round((from_s + index / (10 * load)) * S), is_idle=False)
    return line


@pytest.mark.parametrize("load", [1.1, 1.5, 4.0, 20.0])
def test_a_line_that_is_long_enough_is_hardly_ever_empty(load: float) -> None:
    """The queue of so many places, one of them at the server, is empty as often as is meant: the sum of a geometric
    series must be 1."""
    num_requests = enough_waiting(load)
    assert num_requests is not None
    whole = (load ** (num_requests + 1.0) - 1.0) / (load - 1.0)
    assert 1.0 / whole == pytest.approx(IDLE_FRACTION, rel=1e-6)


def test_the_more_arrives_the_shorter_the_line_and_up_to_the_capacity_none_is_long_enough() -> None:
    lengths = [enough_waiting(load) or 0.0 for load in (1.05, 1.2, 2.0, 4.0)]
    assert lengths == sorted(lengths, reverse=True) and lengths[-1] < 6.0
    assert enough_waiting(1.0) is None and enough_waiting(0.0) is None


def test_an_overload_shortens_the_line() -> None:
    line = loaded(4.0, 20.0)
    assert line.longest_s(0.0, DRAIN, 20 * S) is None, (
        "nobody was refused: clients that wait for each other's end, perhaps"
    )
    line.overflows(MAX_TTFT_S, 20 * S)
    longest_s = line.longest_s(0.0, DRAIN, 20 * S)
    assert longest_s == pytest.approx((enough_waiting(4.0) or 0.0) / 10, rel=0.1)
    assert line.longest_s(0.0, None, 20 * S) is None, "the rate at which it moves is not known yet"


def test_what_is_at_the_workers_counts_but_leaves_a_line_to_order() -> None:
    """Red when a priority or a share is worth nothing because the workers have enough for the moment."""
    line = loaded(4.0, 20.0)
    line.overflows(MAX_TTFT_S, 20 * S)
    alone_s = line.longest_s(0.0, DRAIN, 20 * S) or 0.0
    assert line.longest_s(0.1, DRAIN, 20 * S) == pytest.approx(alone_s - 0.1)
    assert line.longest_s(100.0, DRAIN, 20 * S) == pytest.approx(0.2), "two requests of 100 tokens"


def test_a_burst_that_could_be_served_in_time_is_no_overload() -> None:
    """Red when whoever comes at once is measured as if it went on coming."""
    line = OverloadDetector()
    line.comes(100, 0, is_idle=True)
    loaded(20.0, 2.0, line)
    line.overflows(MAX_TTFT_S, 2 * S)
    assert line.longest_s(0.0, DRAIN, 2 * S) is None


def test_it_is_over_when_somebody_need_not_wait() -> None:
    line = loaded(4.0, 20.0)
    line.overflows(MAX_TTFT_S, 20 * S)
    line.comes(100, 20 * S + 1, is_idle=True)
    assert line.longest_s(0.0, DRAIN, 20 * S + 2) is None
    line.overflows(MAX_TTFT_S, 20 * S + 3)
    assert line.longest_s(0.0, DRAIN, 20 * S + 4) is None, "everybody has to wait for nothing but a moment"


def test_the_line_may_grow_again_as_the_load_falls() -> None:
    line = loaded(4.0, 20.0)
    line.overflows(MAX_TTFT_S, 20 * S)
    loaded(0.8, 30.0, line, 20.0)
    lengths = [line.longest_s(0.0, DRAIN, at_s * S) for at_s in (50, 51)]
    assert lengths == [None, None]
