"""What steps of the fake engine would read and multiply."""

from __future__ import annotations

import pytest

from relevo.core.events import UNKNOWN_LIMITS, StepCosts
from relevo.core.plan import StepPlan
from relevo.engine.fake_work import fake_work


def test_the_fake_engine_uses_the_share_of_a_step_that_its_costs_say() -> None:
    """A step of 100 tokens after 1000: 10 ms of reading weights, 20 of products, 5.5 of KV."""
    costs = StepCosts(base_s=0.010, per_token_s=0.0002, per_kv_token_s=0.000005)
    work, limits = fake_work(costs)
    plan = StepPlan(step_id=1, sequence_ids=[1], starts=[1000], lengths=[100], last_token_ids=[0], num_draws=[1])
    step_s = costs.step_s(plan.num_tokens, plan.num_kv_tokens)
    assert limits.product_ops_per_s is not None
    assert limits.read_bytes_per_s is not None
    assert work.plan_operations(plan) / limits.product_ops_per_s == pytest.approx(0.020)
    assert work.decode_bytes(plan.num_kv_tokens) / limits.read_bytes_per_s == pytest.approx(0.0155)
    assert step_s == pytest.approx(0.0355)
    assert fake_work(StepCosts(base_s=0.0, per_token_s=0.0, per_kv_token_s=0.0))[1] == UNKNOWN_LIMITS
