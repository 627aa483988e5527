"""How many prompt tokens a step computes, beside the decodes that must not stall.

Pure functions from budgets to sizes. Source: Sarathi-Serve (Agrawal et al., OSDI 2024), stall-free batching.
"""

from __future__ import annotations

import math

from relevo.core.events import StepCosts

# Arbitrary: with a prefill budget of 0, one block of prompt every this many decode steps keeps prompts from starving.
STARVATION_STEPS = 8

# Arbitrary: what chunks of prompts beside decodes may cost more than larger ones would, so that decodes wait less.
MAX_CHUNK_WASTE = 0.05
LEAST_CHUNK = 128  # measured: chunks of 128 are computed as fast as of 512, of 32 a tenth more slowly
MAX_CHUNK = 1 << 20  # more than any step has

# Arbitrary. Of one step: each brings a row of logits as long as the vocabulary, 77 MB in all where it has 150,000 ids.
MAX_SCORED_TOKENS = 128


def token_budget(costs: StepCosts, max_step_s: float, at_least: int, at_most: int) -> int:
    """The largest power of two whose step takes at most `max_step_s`, kept within the two bounds.

    A power of two, so that noise in the measurement hardly ever changes it: equal budgets cut prompts equally.
    """
    budget = 1
    while 2 * budget <= at_most and costs.step_s(2 * budget, 2 * budget) <= max_step_s:
        budget *= 2
    return min(max(budget, at_least), at_most)


def least_tokens(costs: StepCosts, max_waste: float) -> int:
    """The smallest chunk of prompts beside decodes that wastes at most `max_waste` of the time of its step.

    Wasted is what each step costs besides its tokens, reading the weights above all: smaller chunks pay it more often,
    larger ones only keep the decodes beside them waiting. A power of two, so that noise in the measurement hardly ever
    changes it, and at least LEAST_CHUNK.
    """
    if costs.per_token_s <= 0.0:
        return MAX_CHUNK
    needed = costs.base_s * (1.0 - max_waste) / max_waste / costs.per_token_s
    return 1 << (math.ceil(min(max(needed, LEAST_CHUNK), MAX_CHUNK)) - 1).bit_length()


def prefill_budget(
    *,
    num_decodes: int,
    max_batched_tokens: int,
    max_prefill_tokens: int,
    num_steps_without_prefill: int,
    block_size: int,
) -> int:
    """Prompt tokens that this step may compute.

    Alone, prompts take the whole step. Beside decodes they take at most `max_prefill_tokens` of what the decodes
    leave. 0 means "none while decodes run", yet never starves: every STARVATION_STEPS-th step still computes a block.
    """
    room = max(0, max_batched_tokens - num_decodes)
    if num_decodes == 0:
        return room
    if max_prefill_tokens > 0:
        return min(max_prefill_tokens, room)
    return min(block_size, room) if num_steps_without_prefill >= STARVATION_STEPS - 1 else 0


def tokens_within(costs: StepCosts, target_s: float, num_decodes: int, num_kv_tokens: int, block_size: int) -> int:
    """Prompt tokens by which a step that also decodes stays below `target_s`; at least a block, so that none starves.

    A power of two of blocks, so that noise in the measurement hardly ever changes it. Without costs: a block.
    """
    left_s = target_s - costs.step_s(num_decodes, num_kv_tokens)
    num_tokens = int(left_s / costs.per_token_s) if costs.per_token_s > 0.0 and left_s > 0.0 else 0
    return block_size << max(0, (num_tokens // block_size).bit_length() - 1)


def chunk_tokens(start: int, num_remaining: int, budget: int, block_size: int) -> int:
    """Size of the next chunk of a prompt whose first `start` tokens are computed.

    A chunk that does not reach the end stops at a block boundary where the budget allows: a finished block can travel.
    """
    if num_remaining <= budget:
        return num_remaining
    aligned = (start + budget) // block_size * block_size - start
    return aligned if aligned > 0 else budget
