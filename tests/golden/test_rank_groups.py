"""Stages that several ranks share: logits and cache have the bits of one rank with all slices, and what raises on one
rank is heard by all, which then compute the next step.

Red when a rank waits for a sum that will not come, when a step that one rank has left goes on elsewhere, when a stage
is handed another rank's states, or when a block is cleared or copied by more than one.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
from stage_threads import pipeline
from tensor_groups import EXPERTS, HEADS, LATENT, mixed_steps, saved_files
from tiny_decoders import BLOCK_SIZE, VOCAB, row, small_layout

from relevo.engine.inputs import pack_rows
from relevo.engine.loaders.model_files import ModelFiles
from relevo.engine.ranks import rank_group
from relevo.engine.ranks.collectives import RankLost
from relevo.engine.ranks.pairwise import PairwiseCollectives, tree_sum
from relevo.engine.ranks.rank_group import RankGroup
from relevo.engine.ranks.ranked_model import RankedModel, StepFailed
from relevo.engine.ranks.step_messages import StageFailed

NUM_BLOCKS, WAIT_S = 16, 60.0
THREE = {**HEADS, "num_hidden_layers": 3}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", THREE),
    "mixtral": ("mixtral", {**THREE, **EXPERTS}),
    "deepseek": ("deepseek_v3", LATENT),
}


@cache
def files_of(case: str) -> ModelFiles:
    return saved_files(*CASES[case])


def memory_of(files: ModelFiles) -> bytearray:
    memory = bytearray(NUM_BLOCKS * small_layout(files.config).bytes_per_block)
    np.frombuffer(memory, dtype=np.float32)[:] = np.nan
    return memory


def logits(model: RankedModel, kv: Any) -> list[np.ndarray]:
    found = []
    for step in mixed_steps():
        inputs = pack_rows(step, BLOCK_SIZE)
        asked = [last - 1 for last in inputs.row_first_token[1:].tolist()]
        found.append(model.forward(inputs, kv, asked).values.copy())
    model.ops.copy_blocks(kv, [(3, 12), (2, 13)])  # the worker alone, between two steps
    return found


@cache
def alone(case: str) -> tuple[list[np.ndarray], bytes]:
    return computed(case, 1, 1)


def computed(case: str, num_stages: int, size: int, piece_tokens: int | None = None) -> tuple[list[np.ndarray], bytes]:
    files = files_of(case)
    memory = memory_of(files)
    with pipeline(files, num_stages, "native", memory, small_layout(files.config), size, piece_tokens) as model:
        kv = model.ops.kv_cache(small_layout(files.config), NUM_BLOCKS, memoryview(memory))
        return logits(model, kv), bytes(memory)


@pytest.mark.parametrize(("num_stages", "size"), [(1, 2), (1, 4), (2, 1), (2, 2), (2, 4), (3, 2)])
@pytest.mark.parametrize("case", CASES)
def test_stages_of_several_ranks_have_the_bits_of_one(case: str, num_stages: int, size: int) -> None:
    found, expected = computed(case, num_stages, size), alone(case)
    for one, other in zip(found[0], expected[0], strict=True):
        np.testing.assert_array_equal(one, other)
    assert found[1] == expected[1], "the cache, which other workers may go on with"


@pytest.mark.parametrize("case", CASES)
def test_pieces_in_the_pipe_of_groups_have_the_bits_of_one(case: str) -> None:
    found, expected = computed(case, 3, 2, piece_tokens=3), alone(case)
    for one, other in zip(found[0], expected[0], strict=True):
        np.testing.assert_array_equal(one, other)
    assert found[1] == expected[1]


@pytest.mark.parametrize(("num_stages", "size"), [(1, 4), (2, 2)])
def test_a_step_that_no_rank_can_compute_leaves_every_rank_as_it_was(num_stages: int, size: int) -> None:
    files, expected = files_of("llama"), alone("llama")
    memory = memory_of(files)
    with pipeline(files, num_stages, "native", memory, small_layout(files.config), size) as model:
        kv = model.ops.kv_cache(small_layout(files.config), NUM_BLOCKS, memoryview(memory))
        for _ in range(2):
            with pytest.raises(StepFailed, match=r"rank 0: token id .* is outside the vocabulary"):
                model.forward(pack_rows([row([VOCAB], 0, [1])], BLOCK_SIZE), kv, [0])
        for one, other in zip(logits(model, kv), expected[0], strict=True):
            np.testing.assert_array_equal(one, other)


# ---- one rank raises ------------------------------------------------------------------------------------------------


def on_all(size: int, call: Any) -> list[Any]:
    groups = [RankGroup(each, size) for each in PairwiseCollectives.local(size)]
    try:
        with ThreadPoolExecutor(size) as pool:
            return [each.result(WAIT_S) for each in [pool.submit(call, group) for group in groups]]
    finally:
        for group in groups:
            group.collectives.close()


@pytest.mark.parametrize("num_sums", [0, 1, 3])
@pytest.mark.parametrize("failing", [(0,), (2,), (1, 3), (0, 1, 2, 3)])
def test_what_one_rank_raises_all_hear_and_the_next_step_is_whole(num_sums: int, failing: Sequence[int]) -> None:
    """After so many sums of three: the others wait for the next one, or have made all of them."""

    def step(group: RankGroup, fails: bool) -> float:
        total = np.full(5, group.rank, np.float32)
        for number in range(3):
            if fails and number == num_sums:
                raise MemoryError(f"no room on {group.rank}")
            group.all_reduce(total)
        if fails:
            raise MemoryError(f"no room on {group.rank}")
        return float(total[0])

    def steps(group: RankGroup) -> list[Any]:
        return [group.together(partial(step, group, fails)) for fails in (False, group.rank in failing, False)]

    for first, failed, last in on_all(4, steps):
        assert (first, last) == (6.0 * 16, 6.0 * 16)
        assert failed == StageFailed(f"MemoryError in rank {failing[0]}: no room on {failing[0]}")


def test_sums_larger_than_a_piece_are_made_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of rows that do not follow each other in memory, as a program's are."""
    monkeypatch.setattr(rank_group, "PIECE_BYTES", 100)
    parts = [np.random.default_rng(rank).normal(0, 10.0**rank, (31, 24)).astype(np.float32) for rank in range(4)]

    def add(group: RankGroup) -> np.ndarray:
        rows = parts[group.rank].copy()
        group.all_reduce(rows[:, 3:10])
        return rows

    for rank, rows in enumerate(on_all(4, add)):
        np.testing.assert_array_equal(rows[:, 3:10], tree_sum([part[:, 3:10] for part in parts]))
        np.testing.assert_array_equal(rows[:, 10:], parts[rank][:, 10:])


def rows_for(rank: int, other: int) -> np.ndarray:
    """None for some, many for others."""
    return np.full((7 * ((rank + 2 * other) % 4), 5), 10 * rank + other, np.float32)


def exchange(group: RankGroup) -> list[np.ndarray]:
    size = group.size
    incoming = [np.zeros_like(rows_for(other, group.rank)) for other in range(size)]
    group.exchange_rows([rows_for(group.rank, other) for other in range(size)], incoming, most_rows=21)
    return incoming


@pytest.mark.parametrize("piece_bytes", [1, 60, 2**20])
def test_rows_go_to_the_rank_that_they_are_for(monkeypatch: pytest.MonkeyPatch, piece_bytes: int) -> None:
    monkeypatch.setattr(rank_group, "PIECE_BYTES", piece_bytes)
    for rank, incoming in enumerate(on_all(4, exchange)):
        for other, rows in enumerate(incoming):
            np.testing.assert_array_equal(rows, 0 * rows if other == rank else rows_for(other, rank))


@pytest.mark.parametrize("failing", [(0,), (3,), (1, 2)])
def test_a_rank_that_raises_before_it_gives_rows_is_heard(
    monkeypatch: pytest.MonkeyPatch, failing: Sequence[int]
) -> None:
    monkeypatch.setattr(rank_group, "PIECE_BYTES", 60)

    def step(group: RankGroup, fails: bool) -> float:
        if fails:
            raise MemoryError("no room")
        return float(sum(rows.sum() for rows in exchange(group)))

    def steps(group: RankGroup) -> list[Any]:
        return [group.together(partial(step, group, fails)) for fails in (False, group.rank in failing, False)]

    for first, failed, last in on_all(4, steps):
        assert first == last and failed == StageFailed(f"MemoryError in rank {failing[0]}: no room")


def test_a_rank_that_has_ended_ends_the_step_of_the_others() -> None:
    def leave(group: RankGroup) -> str:
        if group.rank == 1:
            group.collectives.close()
            return ""
        with pytest.raises(RankLost) as error:
            group.together(lambda: group.all_reduce(np.zeros(1, np.float32)))
        return str(error.value)

    assert on_all(4, leave)[0] == "rank 1 has ended"
