"""Experts that lie on ranks by their loads, hot ones more than once: the bits are those of experts in order.

Red when what one rank computes for another gets lost, is added twice or in another order, when a token of an expert
with copies is computed by two of them, or when a run of tokens takes the rows of the one before.
"""

from __future__ import annotations

import random
from functools import cache
from typing import Any

import numpy as np
import pytest
from tensor_groups import (
    EXPERTS,
    HEADS,
    LATENT,
    NUM_BLOCKS,
    Outcome,
    Step,
    ThreadSums,
    computed,
    mixed_steps,
    saved_files,
)
from tiny_decoders import BLOCK_SIZE, LOCAL, prompt, row

from relevo.core.errors import UnsupportedModel
from relevo.core.model import ExpertRanks
from relevo.engine.loaders.model_files import ModelFiles
from relevo.engine.models.families import spec_of
from relevo.engine.models.slices import share_of
from relevo.engine.ops.native.ops import NativeOps
from relevo.policy.perf.expert_placement import in_order, place_experts

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "mixtral": ("mixtral", {**HEADS, **EXPERTS}),
    "deepseek": ("deepseek_v3", LATENT),
    "gpt-oss": ("gpt_oss", {**LOCAL["gpt_oss"], **HEADS, "num_local_experts": 8}),  # with biases
}


@cache
def files_of(case: str) -> ModelFiles:
    return saved_files(*CASES[case])


@cache
def in_one_process(case: str) -> Outcome:
    return computed(files_of(case), "native", 1, whole_experts=True)


def placed(case: str, size: int, num_redundant: int) -> ExpertRanks:
    """By skewed loads that are others in each layer."""
    experts = files_of(case).config.experts
    assert experts is not None
    found = []
    for layer in experts.layers:
        loads = [1000.0 / (2 + place) for place in range(experts.num_experts)]
        random.Random(layer).shuffle(loads)
        found.append(place_experts(loads, in_order(experts.num_experts, size), num_redundant, 0.0).ranks)
    assert any(ranks != in_order(experts.num_experts, size).ranks for ranks in found)
    return tuple(found)


@pytest.mark.parametrize(("size", "num_redundant"), [(2, 0), (2, 4), (4, 0), (4, 8), (8, 8)])
@pytest.mark.parametrize("case", CASES)
def test_bits_do_not_depend_on_where_experts_lie(case: str, size: int, num_redundant: int) -> None:
    ranks = placed(case, size, num_redundant)
    assert (max(len(holders) for layer in ranks for holders in layer) > 1) == (num_redundant > 0)
    found = computed(files_of(case), "native", size, expert_ranks=ranks)
    assert in_one_process(case).equals(found)
    assert all(loads == found.loads[0] for loads in found.loads), "all ranks count all tokens and all ranks"
    assert found.loads[0].tokens == in_one_process(case).loads[0].tokens and not in_one_process(case).loads[0].ranks
    assert list(map(sum, found.loads[0].ranks)) == list(map(sum, found.loads[0].tokens))


@pytest.mark.parametrize("backend", ["native", "torch"])
def test_in_order_ranks_compute_the_tokens_of_their_experts(backend: str) -> None:
    (loads, other) = computed(files_of("mixtral"), backend, 2, whole_experts=True).loads
    assert loads == other
    assert loads.ranks == tuple((sum(tokens[:4]), sum(tokens[4:])) for tokens in loads.tokens)


@pytest.mark.parametrize("case", CASES)
def test_every_rank_may_have_every_expert(case: str) -> None:
    experts = files_of(case).config.experts
    assert experts is not None
    everywhere = len(experts.layers) * (experts.num_experts * ((0, 1, 2, 3),),)
    found = computed(files_of(case), "native", 4, expert_ranks=everywhere)
    assert in_one_process(case).equals(found)
    steps = len(mixed_steps())
    assert all(max(ranks) - min(ranks) <= steps for ranks in found.loads[0].ranks), "in every step nearly even"


def test_long_steps_pass_experts_in_runs_on_every_rank() -> None:
    """More tokens than one run has."""
    num_tokens = 700
    blocks = list(range(1, num_tokens // BLOCK_SIZE + 2))
    steps: list[Step] = [[row(prompt(num_tokens, seed=3), 0, blocks)]]
    how: dict[str, Any] = {"steps": steps, "num_blocks": len(blocks) + NUM_BLOCKS}
    alone = computed(files_of("mixtral"), "native", 1, whole_experts=True, **how)
    assert alone.equals(computed(files_of("mixtral"), "native", 2, expert_ranks=placed("mixtral", 2, 4), **how))


def test_copies_share_the_tokens_of_their_expert() -> None:
    """The hottest expert of all is on both ranks: neither computes nearly all of its pairs for the other."""
    moved: list[tuple[int, int]] = []

    class Watching(ThreadSums):
        def exchange_rows(self, outgoing: Any, incoming: Any, most_rows: int) -> None:
            moved.append((len(outgoing[1 - self.rank]), len(incoming[1 - self.rank])))
            super().exchange_rows(outgoing, incoming, most_rows)

    experts = files_of("mixtral").config.experts
    assert experts is not None
    everywhere = len(experts.layers) * (experts.num_experts * ((0, 1),),)
    taken = computed(files_of("mixtral"), "native", 2, expert_ranks=everywhere, sums=Watching)
    assert in_one_process("mixtral").equals(taken)
    pairs = sum(len(tokens.token_ids) for step in mixed_steps() for tokens in step) * experts.routing.num_active
    assert moved and sum(sent for sent, _ in moved) < pairs * len(experts.layers)
    assert sum(sent for sent, _ in moved) == sum(got for _, got in moved)


def test_torch_refuses_what_it_does_not_place() -> None:
    with pytest.raises(UnsupportedModel, match="not in order on ranks are not implemented by torch"):
        computed(files_of("mixtral"), "torch", 2, expert_ranks=placed("mixtral", 2, 4))


BAD: dict[str, tuple[Any, str]] = {
    "nowhere": ((), "is on no rank"),
    "twice": ((0, 0), "is on no rank, or not once on each"),
    "unsorted": ((1, 0), "is on no rank, or not once on each"),
    "unknown": ((2,), "is on no rank, or not once on each"),
}


@pytest.mark.parametrize("case", BAD)
def test_placements_that_are_none_are_refused_when_a_model_is_loaded(case: str) -> None:
    experts = files_of("mixtral").config.experts
    assert experts is not None
    holders, words = BAD[case]
    ranks = (*in_order(experts.num_experts, 2).ranks[:-1], holders)
    with pytest.raises(UnsupportedModel, match=words):
        computed(files_of("mixtral"), "native", 2, expert_ranks=len(experts.layers) * (ranks,))


def test_experts_apart_from_their_sums_need_ranks_that_move_rows() -> None:
    """One rank of two without the other, as a test might load it."""
    files = files_of("mixtral")
    share = share_of(files.config, 0, 2, whole_experts=True, expert_ranks=placed("mixtral", 2, 4))
    with pytest.raises(UnsupportedModel, match="nothing moves its rows"):
        spec_of(files.config).load(files.config, files.tensors(), NativeOps("float32"), 64, share)


def test_random_placements() -> None:
    rng = np.random.default_rng(7)
    experts = files_of("mixtral").config.experts
    assert experts is not None
    for size in (2, 4):
        ranks = []
        for _ in experts.layers:
            layer = [sorted(set(rng.integers(0, size, 1 + rng.integers(0, 2)).tolist())) for _ in range(8)]
            for rank in range(size):  # each has something to compute with
                layer[rank] = sorted({*layer[rank], rank})
            ranks.append(tuple(map(tuple, layer)))
        assert in_one_process("mixtral").equals(
            computed(files_of("mixtral"), "native", size, expert_ranks=tuple(ranks))
        )
