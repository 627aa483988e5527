"""Who is taken for silent, in intervals. Red when an answer is forgotten, or when time counts instead of intervals."""

from __future__ import annotations

import pytest

from relevo.policy.http.liveness import Liveness


@pytest.mark.parametrize(("timeout_s", "num_intervals"), [(0.1, 2), (2.0, 2), (8.0, 8)])
def test_so_many_intervals_without_a_word_and_no_fewer(timeout_s: float, num_intervals: int) -> None:
    liveness = Liveness.within(timeout_s)
    assert [liveness.ask() for _ in range(num_intervals + 1)] == [True] * num_intervals + [False]


def test_one_word_begins_anew() -> None:
    liveness = Liveness(max_unanswered=2)
    for _ in range(10):
        assert liveness.ask() and liveness.ask()
        liveness.heard()
    assert liveness.ask() and liveness.ask() and not liveness.ask()
