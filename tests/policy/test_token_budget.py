"""The default token budget of a step. Red when steps get longer than asked for although a smaller budget would do."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from relevo.core.events import StepCosts
from relevo.policy.worker.chunking import token_budget

positive = st.floats(1e-6, 1.0)


@given(positive, positive, positive, positive)
def test_the_largest_power_of_two_that_keeps_the_time(base_s: float, token_s: float, kv_s: float, max_s: float) -> None:
    costs = StepCosts(base_s=base_s, per_token_s=token_s, per_kv_token_s=kv_s)
    budget = token_budget(costs, max_s, at_least=1, at_most=4096)
    assert budget & (budget - 1) == 0
    assert budget == 1 or costs.step_s(budget, budget) <= max_s
    assert budget == 4096 or costs.step_s(2 * budget, 2 * budget) > max_s


def test_bounds_win_over_time() -> None:
    slow = StepCosts(base_s=1.0, per_token_s=1.0, per_kv_token_s=0.0)
    unknown = StepCosts(base_s=0.0, per_token_s=0.0, per_kv_token_s=0.0)
    assert token_budget(slow, 0.1, at_least=64, at_most=512) == 64
    assert token_budget(unknown, 0.1, at_least=64, at_most=500) == 256
