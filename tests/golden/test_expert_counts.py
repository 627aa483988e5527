"""How many tokens passed each expert: what `transformers` chooses, on both backends and every rank, each token once.

Red when a token is counted once per slice, when a rank misses the tokens of experts that are elsewhere, or when a layer
has another's numbers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tiny_decoders import BACKENDS, PagedDecoder, hf_model, prompt, row

from kept_folders import kept_folder
from relevo.engine.loaders.resolve import load_model_files
from relevo.engine.models.expert_counts import ExpertCounts
from relevo.engine.models.families import spec_of
from relevo.engine.models.slices import share_of
from relevo.engine.ops.native.ops import NativeOps

LENGTH, NUM_EXPERTS, NUM_ACTIVE = 40, 8, 3
SIZES = {"num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 64}
FAMILY: tuple[str, dict[str, Any]] = (
    "mixtral",
    {**SIZES, "num_local_experts": NUM_EXPERTS, "num_experts_per_tok": NUM_ACTIVE, "num_hidden_layers": 3},
)


@pytest.fixture(scope="module")
def chosen() -> np.ndarray:
    """[layers, experts] of one prompt."""
    family, changes = FAMILY
    with torch.inference_mode():
        answer = hf_model(family, **changes)(torch.tensor([prompt(LENGTH)]), output_router_logits=True)
    best = [logits.topk(NUM_ACTIVE, dim=-1).indices.flatten() for logits in answer.router_logits]
    return np.stack([torch.bincount(each, minlength=NUM_EXPERTS).numpy() for each in best])


@pytest.fixture(scope="module")
def files() -> Any:
    folder = kept_folder("counted")
    hf_model(FAMILY[0], **FAMILY[1]).save_pretrained(folder)
    return load_model_files(str(folder))


@pytest.mark.parametrize("backend", BACKENDS)
def test_tokens_are_counted_as_they_choose(backend: str, files: Any, chosen: np.ndarray) -> None:
    decoder = PagedDecoder(files, backend=backend)
    whole, blocks = prompt(LENGTH), list(range(10))
    for start in range(0, LENGTH, 16):
        decoder.step(row(whole[start : start + 16], start, blocks))
    counts = decoder.decoder.expert_counts
    assert counts.layers == (0, 1, 2)
    assert np.array_equal(counts.tokens, chosen)
    assert counts.loads().tokens == tuple(map(tuple, chosen.tolist()))
    counts.clear()
    decoder.step(row(whole[:1], 0, blocks))
    assert counts.tokens.sum(axis=1).tolist() == [NUM_ACTIVE] * 3


@pytest.mark.parametrize("whole_experts", [False, True])
def test_a_rank_of_all_slices_counts_each_token_once(whole_experts: bool, files: Any, chosen: np.ndarray) -> None:
    share = share_of(files.config, 0, 1, whole_experts=whole_experts)
    assert share.num_slices == 8
    ops = NativeOps("float32", cores=(0, 1))
    sliced = spec_of(files.config).load(files.config, files.tensors(), ops, files.config.max_position, share)
    decoder = PagedDecoder(files, backend="native")
    decoder.decoder, decoder.kv = sliced, ops.kv_cache(decoder.layout, 64, memoryview(decoder.memory))
    decoder.step(row(prompt(LENGTH), 0, list(range(10))))
    assert np.array_equal(sliced.expert_counts.tokens, chosen)


def test_a_stage_counts_its_own_layers(files: Any) -> None:
    assert ExpertCounts.of_stage(files.config, range(1, 3)).layers == (1, 2)
    ExpertCounts.of_stage(files.config, range(1, 3)).of_layer(2)[0][:] = 1
    with pytest.raises(ValueError, match="tuple"):
        ExpertCounts.of_stage(files.config, range(1, 3)).of_layer(0)
