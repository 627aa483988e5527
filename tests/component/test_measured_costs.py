"""How long a chunk a start measures: long where that is soon done, short on slow models. Red when a start of a slow one
computes the long chunk anyway, or when what was measured is not what costs are made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest

from relevo.build.worker import _measured_costs


class Clockwork:
    """A runner whose steps take so long for each of their tokens."""

    def __init__(self, token_s: float) -> None:
        self._token_s = token_s
        self.measured: list[int] = []

    def measure(self, steps: Sequence[tuple[int, int]]) -> list[tuple[int, int, float]]:
        self.measured += [num_tokens for num_tokens, _ in steps]
        return [(num_tokens, context, num_tokens * self._token_s) for num_tokens, context in steps]


@pytest.mark.parametrize(("token_s", "longest"), [(0.001, 32), (0.1 / 32, 32), (0.004, 16), (1.0, 16)])
def test_the_long_chunk_is_one_that_is_soon_done(token_s: float, longest: int) -> None:
    runner = Clockwork(token_s)
    costs = _measured_costs(cast(Any, runner))
    assert runner.measured == [1, 1, 8, longest]
    assert costs.costs.step_s(64, 0) == pytest.approx(64 * token_s, rel=0.1)
