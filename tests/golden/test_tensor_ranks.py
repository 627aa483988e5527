"""Ranks that share every step of a model compute, to the bit, what one rank computes that has all slices.

Red when a sum depends on how many ranks share it, when a rank takes another's part of a tensor or of the cache, when a
bias is added once per slice, when a block is cleared under another rank's hands, or when a cut is inside a block of
quantised weights.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from relevo_native import _native
from tensor_groups import EXPERTS, HEADS, LATENT, Outcome, ThreadSums, computed, make_rank, mixed_steps, saved_files
from tiny_decoders import BACKENDS, BLOCK_SIZE, LOCAL, hf_model, small_layout, write_gguf

from relevo.core.errors import SettingsError, UnsupportedModel
from relevo.core.model import ModelConfig
from relevo.engine.inputs import pack_rows
from relevo.engine.loaders.model_files import ModelFiles
from relevo.engine.loaders.resolve import load_model_files
from relevo.engine.models.families import config_from_hf, spec_of
from relevo.engine.models.slice_tensors import SliceTensors
from relevo.engine.models.slices import share_of
from relevo.engine.ops.native.ops import NativeOps
from relevo.engine.ops.protocol import HostTensor

if not hasattr(_native.Program, "exchange"):
    pytest.skip("relevo-native is older than its sources here; run `make native`", allow_module_level=True)

SHARED = {"n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 64, "first_k_dense_replace": 1}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {**HEADS, "attention_bias": True, "mlp_bias": True}),
    "qwen3": ("qwen3", {**HEADS, "num_key_value_heads": 8}),
    "one-key-value-head": ("llama", {**HEADS, "num_key_value_heads": 1, "tie_word_embeddings": True}),
    "nine-heads": (
        "llama",
        {**HEADS, "num_attention_heads": 9, "num_key_value_heads": 3, "hidden_size": 72, "attention_bias": True},
    ),
    "mixtral": ("mixtral", {**HEADS, **EXPERTS}),
    "deepseek": ("deepseek_v3", LATENT),
    "glm": ("glm4_moe", {**HEADS, **SHARED, "use_qk_norm": True, "attention_bias": True}),
    "gpt-oss": ("gpt_oss", {**LOCAL["gpt_oss"], **HEADS, "num_local_experts": 8}),
    "gemma3": ("gemma3_text", {**LOCAL["gemma3_text"], **HEADS}),
}


@cache
def files_of(case: str) -> ModelFiles:
    return saved_files(*CASES[case])


@cache
def on_one_rank(case: str, backend: str, whole_experts: bool = False) -> Outcome:
    return computed(files_of(case), backend, 1, whole_experts=whole_experts)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", CASES)
def test_the_bits_do_not_depend_on_how_many_ranks_there_are(case: str, backend: str) -> None:
    for size in (2, 4):
        assert on_one_rank(case, backend).equals(computed(files_of(case), backend, size)), size


@pytest.mark.parametrize("backend", BACKENDS)
def test_eight_ranks_too(backend: str) -> None:
    assert on_one_rank("llama", backend).equals(computed(files_of("llama"), backend, 8))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", ["mixtral", "deepseek", "gpt-oss"])
def test_experts_may_lie_whole_on_ranks(case: str, backend: str) -> None:
    alone = on_one_rank(case, backend, whole_experts=True)
    for size in (2, 4):
        assert alone.equals(computed(files_of(case), backend, size, whole_experts=True)), size
    assert_near(alone, computed(files_of(case), backend, None))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", CASES)
def test_slices_come_to_what_the_uncut_model_comes_to(case: str, backend: str) -> None:
    assert_near(on_one_rank(case, backend), computed(files_of(case), backend, None))


def assert_near(cut: Outcome, whole: Outcome) -> None:
    for ours, theirs in zip(cut.logits[0], whole.logits[0], strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5 * max(1.0, float(np.abs(theirs).max())))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_rank_with_the_slices_of_another_is_seen(backend: str) -> None:
    """What the tests above would show: ranks that all load the first rank's part have the right shapes."""
    taken = computed(files_of("llama"), backend, 2, shares=lambda share: replace(share, rank=0))
    assert not on_one_rank("llama", backend).equals(taken)


# ---- ranks that fail ------------------------------------------------------------------------------------------------


class GoneError(Exception):
    pass


class Leaving(ThreadSums):
    """Answers some calls, then raises: what a rank sees when another has ended."""

    left_after = 3

    def all_reduce(self, array: np.ndarray) -> None:
        self.left_after -= 1
        if not self.left_after:
            raise GoneError


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_step_without_the_others_ends_with_their_error(backend: str) -> None:
    """On all threads of the rank; and the program can run again."""
    files, sums = files_of("llama"), Leaving.of(2)[0]
    ops = make_rank(backend, sums)
    share = share_of(files.config, 0, 2)
    model = spec_of(files.config).load(files.config, files.tensors(), ops, 128, share)
    layout = small_layout(files.config)
    kv = ops.kv_cache(layout, 16, memoryview(bytearray(16 * layout.bytes_per_block)))
    inputs = pack_rows(mixed_steps()[0], BLOCK_SIZE)
    for _ in range(2):
        sums.left_after = 4
        with pytest.raises(GoneError):
            model.forward(inputs, kv, [0])
    sums.left_after = 100
    assert model.forward(inputs, kv, [0]).values.shape == (1, files.config.vocab_size)


# ---- what a rank holds ----------------------------------------------------------------------------------------------


def test_a_rank_keeps_its_part_of_the_weights_only() -> None:
    """On the native backend, which counts them. Embedding, output layer, norms and routers are whole everywhere."""
    files, packed = files_of("deepseek"), []
    for size in (1, 8):
        ops = NativeOps("float32", cores=(0,))
        spec_of(files.config).load(files.config, files.tensors(), ops, 128, share_of(files.config, 0, size))
        packed.append(ops.weight_bytes)
    whole_everywhere = 2 * files.config.vocab_size * files.config.hidden_size * 4
    assert packed[1] - whole_everywhere < 0.3 * (packed[0] - whole_everywhere)


def test_a_part_does_not_keep_the_whole_tensor() -> None:
    config = files_of("llama").config
    tensors = SliceTensors(config, share_of(config, 1, 2).slices(config)[0])
    for name, shape in (("self_attn.q_proj", (64, 64)), ("self_attn.o_proj", (64, 64)), ("mlp.down_proj", (64, 96))):
        part = tensors.part(f"model.layers.0.{name}.weight", HostTensor(np.zeros(shape, np.float32), "float32"))
        memory: Any = part.array
        while memory.base is not None:
            memory = memory.base
        assert memory.nbytes - 64 == part.array.nbytes < 64 * 64 * 4, name


# ---- quantised weights ----------------------------------------------------------------------------------------------

WIDE = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 32,
}


def stored_in_blocks(folder: Path, **changes: Any) -> ModelFiles:
    write_gguf(hf_model("llama", **{**WIDE, **changes}), folder / "tiny.gguf", GGMLQuantizationType.Q8_0)
    return load_model_files(str(folder / "tiny.gguf"))


def test_quantised_weights_are_cut_between_their_blocks(tmp_path: Path) -> None:
    """8 slices of 32 and 64 columns, as they are stored."""
    files = stored_in_blocks(tmp_path)
    ops = NativeOps(cores=(0,))
    model = spec_of(files.config).load(
        files.config, files.tensors(raw_formats=ops.native_formats), ops, 128, share_of(files.config, 3, 4)
    )
    assert model.config.num_heads == 8


def test_a_cut_inside_a_block_is_refused(tmp_path: Path) -> None:
    files = stored_in_blocks(tmp_path, intermediate_size=384)  # 48 columns
    ops = NativeOps(cores=(0,))
    with pytest.raises(
        UnsupportedModel, match=r"q8_0, whose blocks of 32 do not end at column 48, .* choose --dtype bfloat16"
    ):
        spec_of(files.config).load(
            files.config, files.tensors(raw_formats=ops.native_formats), ops, 128, share_of(files.config, 0, 2)
        )


# ---- what cannot be cut ---------------------------------------------------------------------------------------------


def config(**changes: Any) -> ModelConfig:
    raw = {"model_type": "llama", "vocab_size": 96, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 8, "num_key_value_heads": 8, "head_dim": 8, "max_position_embeddings": 128}
    return config_from_hf({**raw, **heads, **changes}, "config.json")


MOE = {"model_type": "mixtral", "num_local_experts": 6, "num_experts_per_tok": 2}
NORMS = {"model_type": "minimax_m2", "num_local_experts": 8, "num_experts_per_tok": 2, "rotary_dim": 8}
REFUSED = {
    "no such size": ({}, 3, False, "a tensor parallel size of 3 is not one of 1, 2, 4, 8; choose one of them"),
    "more than there are": ({}, 16, False, "16 is not one of"),
    "none": ({}, 0, False, "0 is not one of"),
    "three heads": (
        {"num_attention_heads": 3, "num_key_value_heads": 1},
        4,
        False,
        "4 ranks cannot share 3 attention heads evenly; choose a tensor parallel size of 2",
    ),
    "columns": ({"intermediate_size": 100}, 8, False, "8 ranks cannot share 100 columns of an MLP .* size of 4"),
    "heads of keys": (
        {"num_attention_heads": 9, "num_key_value_heads": 9},
        2,
        False,
        "2 ranks cannot share 9 key-value heads evenly; choose a tensor parallel size of 1",
    ),
    "experts": ({**MOE}, 4, True, "4 ranks cannot share 6 experts evenly; choose a tensor parallel size of 2"),
    "columns of experts": (
        {**MOE, "intermediate_size": 100},
        8,
        False,
        "8 ranks cannot share 100 columns of an expert",
    ),
    "no experts": ({}, 2, True, "a model without experts has none to place whole; leave out --enable-expert-parallel"),
    "norms over heads": (NORMS, 2, False, "norms of queries and keys span all heads is not implemented on several"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_shared_evenly_is_refused(case: str) -> None:
    changes, size, whole_experts, sentence = REFUSED[case]
    with pytest.raises((SettingsError, UnsupportedModel), match=sentence):
        share_of(config(**changes), 0, size, whole_experts=whole_experts)


@pytest.mark.parametrize(
    ("changes", "num_slices"),
    [
        ({}, 8),
        ({"intermediate_size": 100}, 4),
        ({"num_attention_heads": 14, "num_key_value_heads": 2}, 8),
        ({"num_attention_heads": 9, "num_key_value_heads": 3}, 8),
        ({"num_attention_heads": 12, "num_key_value_heads": 6}, 8),
        ({"num_attention_heads": 6, "num_key_value_heads": 2}, 4),
        ({"num_attention_heads": 6, "num_key_value_heads": 6}, 2),
        ({"num_attention_heads": 9, "num_key_value_heads": 9}, 1),
        ({"num_attention_heads": 8, "num_key_value_heads": 2}, 8),
    ],
)
def test_the_number_of_slices_is_the_models_and_not_the_ranks(changes: dict[str, Any], num_slices: int) -> None:
    asked = config(**changes)
    for size in (1, 2, 4, 8):
        if size > num_slices:
            with pytest.raises(UnsupportedModel):
                share_of(asked, 0, size)
        else:
            shares = [share_of(asked, rank, size) for rank in range(size)]
            assert {share.num_slices for share in shares} == {num_slices}
            numbers = [part.number for share in shares for part in share.slices(asked)]
            assert numbers == list(range(num_slices))


def test_a_rank_has_the_key_value_head_that_its_queries_share() -> None:
    """floor(rank * heads / ranks)"""
    asked = config(num_key_value_heads=2)
    firsts = [share_of(asked, rank, 8).slices(asked)[0].first_kv_head for rank in range(8)]
    assert firsts == [0, 0, 0, 0, 1, 1, 1, 1]
    asked = config(num_attention_heads=16, num_key_value_heads=16)
    assert [part.first_kv_head for part in share_of(asked, 1, 2).slices(asked)] == [8, 10, 12, 14]
