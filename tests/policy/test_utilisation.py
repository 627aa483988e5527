"""How much of its hardware's limits a worker uses."""

from __future__ import annotations

import pytest

from relevo.core.events import UNKNOWN_LIMITS, StepCosts, StepCounters, WorkerLimits
from relevo.core.plan import StepPlan
from relevo.engine.fake_work import fake_work
from relevo.policy.perf.utilisation import Limit, utilisation

LIMITS = WorkerLimits(product_ops_per_s=100.0, read_bytes_per_s=10.0)
ZERO = StepCounters()


def test_the_limit_that_more_is_used_of_counts() -> None:
    prefill = StepCounters(busy_s=1.0, product_ops=160.0, read_bytes=2.0)
    assert utilisation(ZERO, prefill, 2.0, LIMITS) == (0.5, Limit.PRODUCTS, 0.8)
    decode = StepCounters(busy_s=1.9, product_ops=20.0, read_bytes=15.0)
    assert utilisation(ZERO, decode, 2.0, LIMITS) == (0.95, Limit.BANDWIDTH, 0.75)


def test_only_what_was_done_between_the_two_counts() -> None:
    before = StepCounters(busy_s=50.0, product_ops=1e6)
    assert utilisation(before, before, 1.0, LIMITS) == (0.0, Limit.PRODUCTS, 0.0)


def test_without_limits_it_is_known_how_busy_it_is_and_no_more() -> None:
    """Red when an unknown limit is taken for none that is used."""
    after = StepCounters(busy_s=0.5, product_ops=1e9, read_bytes=1e9)
    assert utilisation(ZERO, after, 1.0, UNKNOWN_LIMITS) == (0.5, None, None)
    only_reads = WorkerLimits(read_bytes_per_s=2e9)
    assert utilisation(ZERO, after, 1.0, only_reads) == (0.5, Limit.BANDWIDTH, 0.5)


def test_counters_that_fell_and_no_time_have_no_utilisation() -> None:
    assert utilisation(StepCounters(busy_s=3.0), ZERO, 1.0, LIMITS) is None
    assert utilisation(ZERO, ZERO, 0.0, LIMITS) is None


def test_a_step_that_ended_late_is_no_more_than_all() -> None:
    assert utilisation(ZERO, StepCounters(busy_s=1.5, product_ops=1e9), 1.0, LIMITS) == (1.0, Limit.PRODUCTS, 1.0)


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
