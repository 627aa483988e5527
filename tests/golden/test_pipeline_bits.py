"""Layers in several ranks: logits and cache have the bits of one rank that has all of them.

Whole prompts, chunks, decodes, a hit prefix, batches, on both backends. Red when a stage clears or writes what is
another's, when states lose a bit on their way, or when a weight is read by the wrong rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stage_threads import load, lost, pipeline
from tiny_decoders import (
    BACKENDS,
    BLOCK_SIZE,
    LOCAL,
    TINY_LATENT,
    VOCAB,
    hf_model,
    make_ops,
    prompt,
    row,
    small_layout,
)

from relevo.core.plan import ScheduledRow
from relevo.engine.inputs import pack_rows
from relevo.engine.loaders.model_files import ModelFiles
from relevo.engine.loaders.resolve import load_model_files
from relevo.engine.models.families import spec_of
from relevo.engine.models.spec import Model
from relevo.engine.ops.protocol import Ops
from relevo.engine.ranks.pairwise import PairwiseCollectives
from relevo.engine.ranks.rank_cores import RankCores
from relevo.engine.ranks.rank_group import RankGroup
from relevo.engine.ranks.ranked_model import RankedModel, StepFailed
from relevo.engine.ranks.stage_rank import StageRank
from relevo.policy.perf.stages import even_stages

NUM_BLOCKS = 48
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"num_hidden_layers": 3, "tie_word_embeddings": True},
    "qwen3_moe": {
        "num_hidden_layers": 4,
        "num_experts": 6,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 40,
        "mlp_only_layers": [1],
        "head_dim": 16,
    },
    "deepseek_v3": TINY_LATENT,
    "gemma3_text": LOCAL["gemma3_text"],
}


@pytest.fixture(scope="module", params=FAMILIES)
def files(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    path: Path = tmp_path_factory.mktemp(request.param)
    hf_model(request.param, **FAMILIES[request.param]).save_pretrained(path)
    return load_model_files(str(path))


def memory_of(files: ModelFiles, dtype: str) -> bytearray:
    """Noise that no number may depend on."""
    layout = small_layout(files.config, dtype)
    memory = bytearray(NUM_BLOCKS * layout.bytes_per_block)
    if dtype == "float32":
        np.frombuffer(memory, dtype=np.float32)[:] = np.nan
    return memory


def cache(files: ModelFiles, ops: Ops, memory: bytearray, dtype: str) -> Any:
    return ops.kv_cache(small_layout(files.config, dtype), NUM_BLOCKS, memoryview(memory))


def steps() -> list[list[ScheduledRow]]:
    """One prompt whole, another in chunks beside decodes of the first, then a batch, one on a hit prefix."""
    first, second = prompt(13, 1), prompt(22, 2)
    a, b, c = [4, 9, 1, 16], [30, 2, 31, 3, 32, 5], [30, 2, 17, 18]
    third = [*second[: 2 * BLOCK_SIZE], *prompt(5, 3)]
    return [
        [row(first, 0, a)],
        [row([7], 13, a), row(second[:9], 0, b)],
        [row([8], 14, a), row(second[9:17], 9, b)],
        [row([9], 15, a), row(second[17:], 17, b), row(third[2 * BLOCK_SIZE :], 2 * BLOCK_SIZE, c)],
        [row([1], 16, [*a, 20]), row([2], 22, b), row([3], 13, c)],
        [row([5], 23, b)],
    ]


def logits(model: Model, kv: Any, rows: Sequence[ScheduledRow]) -> np.ndarray:
    inputs = pack_rows(rows, BLOCK_SIZE)
    return model.forward(inputs, kv, range(inputs.num_tokens)).values.copy()


@pytest.mark.parametrize(("backend", "dtype"), [*((each, "float32") for each in BACKENDS), ("torch", "bfloat16")])
@pytest.mark.parametrize("size", [2, 3])
def test_stages_have_the_bits_of_one_rank(files: ModelFiles, backend: str, dtype: str, size: int) -> None:
    alone, apart = memory_of(files, dtype), memory_of(files, dtype)
    ops = make_ops(backend, dtype)
    whole, kv = load(files, ops), cache(files, ops, alone, dtype)
    with pipeline(files, size, backend, apart, small_layout(files.config, dtype)) as model:
        own = cache(files, model.ops, apart, dtype)
        for rows in steps():
            np.testing.assert_array_equal(logits(model, own, rows), logits(whole, kv, rows))
            assert apart == alone, "the cache of every layer, which another worker may go on with"


@pytest.mark.parametrize("piece_tokens", [1, 2, 3, 5])
@pytest.mark.parametrize("size", [2, 3])
def test_pieces_in_the_pipe_have_the_bits_of_whole_steps(files: ModelFiles, size: int, piece_tokens: int) -> None:
    """Rows are cut in blocks and between them, decodes share pieces with prompts. Red when a piece attends to what is
    behind it, clears a block that the piece before has begun, or has its logits at another's place."""
    alone, apart = memory_of(files, "float32"), memory_of(files, "float32")
    ops = make_ops("native")
    whole, kv = load(files, ops), cache(files, ops, alone, "float32")
    with pipeline(files, size, "native", apart, small_layout(files.config), piece_tokens=piece_tokens) as model:
        own = cache(files, model.ops, apart, "float32")
        for rows in steps():
            np.testing.assert_array_equal(logits(model, own, rows), logits(whole, kv, rows))
            assert apart == alone
    assert (model.expert_counts.tokens == whole.expert_counts.tokens[-len(model.expert_counts.tokens) or None :]).all()


def test_logits_that_are_asked_for_in_any_order_are_found_in_their_pieces(files: ModelFiles) -> None:
    inputs = pack_rows([row(prompt(13, 1), 0, [4, 9, 1, 16])], BLOCK_SIZE)
    ops, alone, apart = make_ops("native"), memory_of(files, "float32"), memory_of(files, "float32")
    whole, kv = load(files, ops), cache(files, ops, alone, "float32")
    with pipeline(files, 2, "native", apart, small_layout(files.config), piece_tokens=4) as model:
        own = cache(files, model.ops, apart, "float32")
        for asked in ([12], [], [0], [11, 2, 2, 7, 12, 5]):
            found, expected = model.forward(inputs, own, asked), whole.forward(inputs, kv, asked)
            np.testing.assert_array_equal(found.values, expected.values)
            assert found.summaries is not None and expected.summaries is not None
            np.testing.assert_array_equal(found.summaries.best, expected.summaries.best)
            np.testing.assert_array_equal(found.summaries.finite, expected.summaries.finite)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("size", "then"), [(2, 1), (1, 2), (3, 2)])
def test_another_number_of_ranks_goes_on_in_the_same_blocks(
    files: ModelFiles, backend: str, size: int, then: int
) -> None:
    """A handoff: a prompt that `size` ranks computed is decoded by `then`."""
    *before, after = steps()
    alone, memory = memory_of(files, "float32"), memory_of(files, "float32")
    ops = make_ops(backend)
    whole, kv = load(files, ops), cache(files, ops, alone, "float32")
    expected = [logits(whole, kv, rows) for rows in steps()]
    for count, part, wanted in ((size, before, expected[:-1]), (then, [after], expected[-1:])):
        if count == 1:
            own = make_ops(backend)
            model = load(files, own)
            found = [logits(model, cache(files, own, memory, "float32"), rows) for rows in part]
        else:
            with pipeline(files, count, backend, memory, small_layout(files.config)) as staged:
                found = [logits(staged, cache(files, staged.ops, memory, "float32"), rows) for rows in part]
        for one, other in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(one, other)
    assert memory == alone


def test_a_step_that_a_stage_cannot_compute_leaves_every_rank_as_it_was(files: ModelFiles) -> None:
    """A token outside the vocabulary, which only the first rank looks up."""
    memory = memory_of(files, "float32")
    alone = memory_of(files, "float32")
    ops = make_ops("native")
    whole, kv = load(files, ops), cache(files, ops, alone, "float32")
    with pipeline(files, 3, "native", memory, small_layout(files.config)) as model:
        own = cache(files, model.ops, memory, "float32")
        with pytest.raises(StepFailed, match=r"rank 0: token id .* is outside the vocabulary"):
            logits(model, own, [row([VOCAB], 0, [1])])
        for rows in steps()[:2]:
            np.testing.assert_array_equal(logits(model, own, rows), logits(whole, kv, rows))


@pytest.mark.parametrize("place", [0, 6, 12])
@pytest.mark.parametrize("size", [2, 3])
def test_a_piece_that_fails_ends_its_step_only(files: ModelFiles, size: int, place: int) -> None:
    """In any piece, while others are in the pipe behind it and before it."""
    alone, memory = memory_of(files, "float32"), memory_of(files, "float32")
    ops, tokens = make_ops("native"), prompt(13, 1)
    whole, kv = load(files, ops), cache(files, ops, alone, "float32")
    tokens[place] = VOCAB
    with pipeline(files, size, "native", memory, small_layout(files.config), piece_tokens=2) as model:
        own = cache(files, model.ops, memory, "float32")
        for _ in range(2):
            with pytest.raises(StepFailed, match=r"rank 0: token id .* is outside the vocabulary"):
                logits(model, own, [row(tokens, 0, [4, 9, 1, 16])])
        for rows in steps():
            np.testing.assert_array_equal(logits(model, own, rows), logits(whole, kv, rows))
    assert memory == alone


def test_ranks_read_what_is_theirs_only(files: ModelFiles) -> None:
    """Every weight once; a tied matrix by the first and the last."""
    spec, config = spec_of(files.config), files.config
    stages = even_stages([1.0] * config.num_layers, (0.0, 0.0), 3)
    read = [[name for group in spec.weights(config, stage) for name in group] for stage in stages]
    every = [name for names in read for name in names]
    twice = {name for name in every if every.count(name) > 1}
    assert set(every) == {name for group in spec.weights(config) for name in group}
    assert twice == ({"model.embed_tokens.weight"} if config.tie_word_embeddings else set())
    assert ("model.embed_tokens.weight" in read[0], "model.norm.weight" in read[2]) == (True, True)
    assert all("embed_tokens" not in name and "lm_head" not in name for name in read[1])


def test_cores_are_told_to_every_rank(files: ModelFiles) -> None:
    told: list[tuple[int, tuple[int, ...]]] = []
    ranks = PairwiseCollectives.local(2)

    def cores(rank: int) -> RankCores:
        def compute_on(own: Sequence[int]) -> bool:
            told.append((rank, tuple(own)))
            return True

        return RankCores([0, 1], rank, 1, 2, compute_on)

    first = load(files, make_ops("native"), range(1))
    rank = StageRank(first, None, RankGroup(ranks[0], 1), cores(0))
    last = load(files, make_ops("native"), range(1, files.config.num_layers))
    assert RankedModel(last, RankGroup(ranks[1], 1), cores(1), lost).use_cores([1, 0])
    rank.turn()
    assert told == [(1, (1, 0)), (0, (1, 0))]


def test_states_of_another_shape_are_refused(files: ModelFiles) -> None:
    """Red when a step that lost its states, or has those of fewer tokens, is computed with what lay in memory."""
    ops, memory = make_ops("native"), memory_of(files, "float32")
    kv, width = cache(files, ops, memory, "float32"), files.config.hidden_size
    inputs = pack_rows([row(prompt(5, 1), 0, [1, 2])], BLOCK_SIZE)
    whole, last = load(files, ops), load(files, ops, range(1, files.config.num_layers))
    for model, hidden in (
        (whole, np.zeros((5, width), np.float32)),
        (last, None),
        (last, np.zeros((4, width), np.float32)),
        (last, np.zeros((5, width + 1), np.float32)),
    ):
        with pytest.raises(ValueError, match="a step brings the hidden states of all its tokens"):
            model.forward(inputs, kv, [4], hidden)
    assert memory == memory_of(files, "float32"), "nothing is written"
