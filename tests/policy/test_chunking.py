"""How a step's token budget is split between decodes and prompts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from relevo.core.events import UNKNOWN_COSTS, StepCosts
from relevo.policy.worker.chunking import (
    LEAST_CHUNK,
    MAX_CHUNK,
    STARVATION_STEPS,
    chunk_tokens,
    least_tokens,
    prefill_budget,
)


def budget(num_decodes: int, max_prefill: int, *, max_batched: int = 64, without: int = 0) -> int:
    return prefill_budget(
        num_decodes=num_decodes,
        max_batched_tokens=max_batched,
        max_prefill_tokens=max_prefill,
        num_steps_without_prefill=without,
        block_size=4,
    )


def test_prompts_alone_take_the_whole_step():
    assert budget(0, 8) == budget(0, 0) == 64


def test_beside_decodes_prompts_take_their_budget_of_what_is_left():
    assert budget(3, 8) == 8
    assert budget(60, 8) == 4
    assert budget(64, 8) == 0


def test_a_budget_of_zero_waits_for_the_decodes_but_does_not_starve():
    assert [budget(3, 0, without=steps) for steps in range(STARVATION_STEPS)] == [0] * (STARVATION_STEPS - 1) + [4]


@given(st.integers(0, 100), st.integers(1, 100), st.integers(1, 40), st.integers(1, 16))
def test_chunks_make_progress_within_budget_and_stop_at_block_ends(start, num_remaining, tokens, block_size):
    size = chunk_tokens(start, num_remaining, tokens, block_size)
    assert 1 <= size <= min(num_remaining, tokens)
    if size < num_remaining and tokens >= block_size:
        assert (start + size) % block_size == 0
        assert tokens - size < block_size


@given(st.floats(1e-5, 1.0), st.floats(1e-6, 0.1), st.floats(0.01, 0.2))
def test_the_least_chunk_wastes_no_more_than_it_may_and_half_of_it_would(base_s, per_token_s, max_waste):
    costs = StepCosts(base_s=base_s, per_token_s=per_token_s, per_kv_token_s=0.0)

    def waste(num_tokens: int) -> float:
        return base_s / costs.step_s(num_tokens, 0)

    size = least_tokens(costs, max_waste)
    assert size & (size - 1) == 0
    assert waste(size) <= max_waste * 1.001 or size == MAX_CHUNK
    assert size == LEAST_CHUNK or waste(size // 2) > max_waste * 0.999


def test_without_costs_chunks_are_not_cut():
    assert least_tokens(UNKNOWN_COSTS, 0.05) == MAX_CHUNK
