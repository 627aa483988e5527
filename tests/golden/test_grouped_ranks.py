"""Layers with windows and chunks in KV groups of their own, shared out over ranks: the tokens, the logits and the cache
of one rank.

Red when a stage takes another layer's place in a block for its own, clears what is another stage's, or clears in one
group only; when a slice of heads is written by the table of another group; or when ranks see different tables.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from stage_threads import load, pipeline
from tensor_groups import NUM_BLOCKS, Step, computed, mixed_steps
from test_grouped_cache import Served, ids_of, noisy_arena, traffic
from tiny_decoders import BACKENDS, BLOCK_SIZE, LOCAL, hf_model, make_ops

from relevo.core.kv import KVLayout
from relevo.engine.loaders.model_files import ModelFiles
from relevo.engine.loaders.resolve import load_model_files
from relevo.engine.models.families import spec_of

HEADS = {"num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 8}  # fewer KV heads than slices
EVEN = {"gpt_oss": {"num_local_experts": 8, "intermediate_size": 64}, "llama4_text": {"intermediate_size_mlp": 64}}


@pytest.fixture(scope="module", params=sorted(LOCAL))
def files(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    path: Path = tmp_path_factory.mktemp(request.param)
    changes = {**LOCAL[request.param], **HEADS, **EVEN.get(request.param, {})}
    hf_model(request.param, **changes).save_pretrained(path)
    return load_model_files(str(path))


def layout_of(files: ModelFiles) -> KVLayout:
    return KVLayout("tiny", "float32", BLOCK_SIZE, spec_of(files.config).kv_groups(files.config))


@pytest.mark.parametrize(("backend", "size"), [("native", 2), ("native", 3), ("torch", 2)])
def test_stages_serve_what_one_rank_serves(files: ModelFiles, backend: str, size: int) -> None:
    """Scheduled: chunks, batches, forks, hits, windows that slide. Every byte of the arena in the end, which was noise
    before: a stage clears and writes its layers only, and together they leave nothing out.
    torch's bits depend on where an array of states lies in memory; its tokens do not."""
    groups, num_blocks = layout_of(files).groups, 200
    alone = Served(load(files, make_ops(backend)), groups, num_blocks)
    arena = noisy_arena(groups, num_blocks)
    with pipeline(files, size, backend, arena.buffer, arena.layout) as model:
        apart = Served(model, groups, num_blocks, arena=arena)
        for requests in list(traffic())[:2]:
            alone.serve(requests)
            apart.serve(requests)
            assert {key: ids_of(tokens) for key, tokens in apart.answers.items()} == {
                key: ids_of(tokens) for key, tokens in alone.answers.items()
            }
            if backend == "native":
                assert apart.answers == alone.answers
                assert bytes(arena.buffer) == bytes(alone.arena.buffer)
    assert apart.scheduler.num_prefix_hits == alone.scheduler.num_prefix_hits > 0


def in_groups(steps: list[Step], layout: KVLayout) -> list[Step]:
    """Each KV group has blocks of its own; what has slid out of its tables is no block."""

    def table(index: int, block_ids: list[int], start: int) -> list[int]:
        first = layout.groups[index].first_kept(start) // BLOCK_SIZE
        return [-1] * first + [block_id + index * NUM_BLOCKS for block_id in block_ids[first:]]

    more = range(1, len(layout.groups))
    return [
        [
            row._replace(more_block_ids=tuple(table(index, list(row.block_ids), row.start) for index in more))
            for row in step
        ]
        for step in steps
    ]


@pytest.mark.parametrize("backend", BACKENDS)
def test_tensor_ranks_compute_what_one_rank_computes(files: ModelFiles, backend: str) -> None:
    layout = layout_of(files)
    steps, num_blocks = in_groups(mixed_steps(), layout), NUM_BLOCKS * len(layout.groups)
    alone = computed(files, backend, 1, steps=steps, layout=layout, num_blocks=num_blocks)
    for size in (2, 4):
        assert alone.equals(computed(files, backend, size, steps=steps, layout=layout, num_blocks=num_blocks)), size
    keeping_all = computed(files, backend, 1)
    for ours, theirs in zip(alone.logits[0], keeping_all.logits[0], strict=True):
        np.testing.assert_array_equal(ours, theirs)
