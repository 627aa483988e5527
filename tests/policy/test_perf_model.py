"""The cost model finds what it was fed, under noise, and stays sane where it was fed little."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relevo.core.events import StepCosts
from relevo.core.handoff import Link
from relevo.core.ids import WorkerId
from relevo.policy.perf.handoff_costs import BoxPair, HandoffCostModel
from relevo.policy.perf.step_costs import StepCostModel

TRUE = StepCosts(base_s=0.008, per_token_s=0.0011, per_kv_token_s=0.8e-6)


def feed(model: StepCostModel, costs: StepCosts, rng: Random, noise: float, num_steps: int = 400) -> None:
    """Decode steps of a few streams, and now and then a chunk of a prompt."""
    for _ in range(num_steps):
        num_tokens = rng.choice((1, 2, 4, 8, 32, 128, 256))
        num_kv_tokens = num_tokens + rng.randrange(8000)
        exact_s = costs.step_s(num_tokens, num_kv_tokens)
        model.observe(num_tokens, num_kv_tokens, exact_s * (1.0 + rng.uniform(-noise, noise)))


def test_before_any_sample_all_is_zero() -> None:
    assert StepCostModel().costs == StepCosts(base_s=0.0, per_token_s=0.0, per_kv_token_s=0.0)


@settings(max_examples=40, deadline=None)
@given(
    base_s=st.floats(1e-4, 0.1),
    per_token_s=st.floats(1e-5, 1e-2),
    per_kv_token_s=st.floats(1e-8, 1e-5),
    noise=st.sampled_from((0.0, 0.05, 0.2)),
    seed=st.integers(0, 10**6),
)
def test_predictions_are_right_whatever_the_coefficients(
    base_s: float, per_token_s: float, per_kv_token_s: float, noise: float, seed: int
) -> None:
    true = StepCosts(base_s=base_s, per_token_s=per_token_s, per_kv_token_s=per_kv_token_s)
    model = StepCostModel()
    feed(model, true, Random(seed), noise)
    for num_tokens, num_kv_tokens in ((1, 2000), (4, 4000), (64, 2000), (256, 8000)):
        expected_s = true.step_s(num_tokens, num_kv_tokens)
        assert model.costs.step_s(num_tokens, num_kv_tokens) == pytest.approx(expected_s, rel=0.01 + noise)


def test_coefficients_are_recovered() -> None:
    model = StepCostModel()
    feed(model, TRUE, Random(1), noise=0.05)
    assert model.costs.base_s == pytest.approx(TRUE.base_s, rel=0.1)
    assert model.costs.per_token_s == pytest.approx(TRUE.per_token_s, rel=0.05)
    assert model.costs.per_kv_token_s == pytest.approx(TRUE.per_kv_token_s, rel=0.25)


def test_three_warm_up_steps_are_enough_to_start_with() -> None:
    model = StepCostModel()
    for num_tokens in (1, 16, 64):
        model.observe(num_tokens, num_tokens, TRUE.step_s(num_tokens, num_tokens))
    assert model.costs.step_s(512, 512) == pytest.approx(TRUE.step_s(512, 512), rel=0.05)


def test_decoding_for_long_does_not_forget_what_a_prompt_costs() -> None:
    """Red when one forgetting factor is used for all samples: alike steps then tell nothing of the price of a token."""
    model = StepCostModel()
    feed(model, TRUE, Random(2), noise=0.02)
    rng = Random(3)
    for step in range(20_000):
        num_kv_tokens = 2000 + step % 500
        model.observe(4, num_kv_tokens, TRUE.step_s(4, num_kv_tokens) * rng.uniform(0.98, 1.02))
    assert model.costs.step_s(512, 512) == pytest.approx(TRUE.step_s(512, 512), rel=0.05)


def test_a_machine_that_got_slower_is_believed() -> None:
    model = StepCostModel()
    feed(model, TRUE, Random(4), noise=0.05)
    slower = StepCosts(base_s=0.02, per_token_s=0.003, per_kv_token_s=2e-6)
    feed(model, slower, Random(5), noise=0.05, num_steps=1500)
    assert model.costs.step_s(128, 1000) == pytest.approx(slower.step_s(128, 1000), rel=0.1)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 5000), st.integers(0, 10**6), st.floats(0.0, 100.0, allow_subnormal=False)),
        max_size=40,
    )
)
def test_costs_are_finite_and_never_negative(samples: list[tuple[int, int, float]]) -> None:
    model = StepCostModel()
    for num_tokens, num_kv_tokens, step_s in samples:
        model.observe(num_tokens, num_kv_tokens, step_s)
        costs = model.costs
        for value in (costs.base_s, costs.per_token_s, costs.per_kv_token_s):
            assert 0.0 <= value < float("inf")


def test_one_kind_of_step_is_predicted_well_even_if_nothing_else_is_known() -> None:
    model = StepCostModel()
    for _ in range(50):
        model.observe(64, 64, 0.064)
    assert model.costs.step_s(64, 64) == pytest.approx(0.064, rel=0.01)
    assert 0.064 < model.costs.step_s(128, 128) <= 0.128


def test_handoff_cost_is_what_it_adds_to_a_step() -> None:
    model = HandoffCostModel()
    assert set(model.handoff_s.values()) == {0.0}
    model.observe(Link.BOX, waited_s=0.030, step_s=0.010)
    assert model.handoff_s[Link.BOX] == pytest.approx(0.020)
    model.observe(Link.BOX, waited_s=0.005, step_s=0.010)  # faster than a step: nothing, not a gain
    assert 0.0 < model.handoff_s[Link.BOX] < 0.020
    for _ in range(100):
        model.observe(Link.BOX, waited_s=0.050, step_s=0.010)
    assert model.handoff_s[Link.BOX] == pytest.approx(0.040, rel=0.01)


def test_links_are_measured_apart_and_an_unused_one_is_worth_a_try() -> None:
    model = HandoffCostModel()
    model.observe(Link.MEMORY, waited_s=0.012, step_s=0.010)
    model.observe(Link.NETWORK, waited_s=0.110, step_s=0.010)
    assert model.handoff_s == pytest.approx({Link.MEMORY: 0.002, Link.BOX: 0.002, Link.NETWORK: 0.1})


FAST, SLOW_PAIR = (WorkerId("p"), WorkerId("d")), (WorkerId("q"), WorkerId("d"))


def test_a_pair_far_below_the_others_is_told_from_its_link_and_named() -> None:
    """Over a network that was asked for and is not used. Red when one mean hides which pair it is."""
    model = HandoffCostModel()
    for _ in range(3):
        model.observe(Link.NETWORK, 0.110, 0.010, FAST)
        model.observe(Link.NETWORK, 0.710, 0.010, SLOW_PAIR)
    assert model.handoff_s[FAST] == pytest.approx(0.1) and model.handoff_s[SLOW_PAIR] == pytest.approx(0.7)
    assert model.slow_pairs() == {SLOW_PAIR: pytest.approx(7.0)}
    for _ in range(200):
        model.observe(Link.NETWORK, 0.110, 0.010, FAST)
    assert model.slow_pairs() == {}, "it is worth another try, now and then"


def test_pairs_of_milliseconds_are_all_alike_and_the_gone_are_forgotten() -> None:
    model = HandoffCostModel()
    for _ in range(5):
        model.observe(Link.MEMORY, 0.011, 0.010, FAST)
        model.observe(Link.MEMORY, 0.018, 0.010, SLOW_PAIR)
    assert model.slow_pairs() == {}, "seven milliseconds are noise"
    model.forget(WorkerId("q"))
    assert SLOW_PAIR not in model.handoff_s and FAST in model.handoff_s


def test_a_pair_begins_with_what_was_measured_of_the_way_between_its_boxes() -> None:
    """Red when a slow way is tried as if it were the fastest one that is known."""
    model = HandoffCostModel()
    model.observe(Link.NETWORK, 0.012, 0.010, FAST)
    model.expect(BoxPair("a", "c"), 0.5)
    assert model.handoff_s[BoxPair("a", "c")] == 0.5
    assert model.handoff_s[Link.NETWORK] == pytest.approx(0.002)
    model.observe(Link.NETWORK, 0.012, 0.010, FAST)
    assert model.handoff_s[BoxPair("a", "c")] == 0.5, "kept while others are measured"
