"""Shapes from configs. Red when a family's weights, KV or formats are counted otherwise than checkpoints have them."""

from __future__ import annotations

from typing import Any

import pytest

import published_configs
from relevo.core.errors import UnsupportedModel
from relevo.core.kv import KVGroup
from relevo.policy.perf.model_config import model_shape
from relevo.policy.perf.weight_formats import WeightFormat, WeightFormats, weight_formats

LLAMA_8B: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
}
DEEPSEEK_V3: dict[str, Any] = {
    "model_type": "deepseek_v3",
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 61,
    "first_k_dense_replace": 3,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "vocab_size": 129280,
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
}
KIMI_K25: dict[str, Any] = {
    "model_type": "kimi_k25",
    "text_config": {
        **DEEPSEEK_V3,
        "model_type": "kimi_k2",
        "first_k_dense_replace": 1,
        "num_attention_heads": 64,
        "num_key_value_heads": 64,
        "n_routed_experts": 384,
        "vocab_size": 163840,
        "quantization_config": {
            "quant_method": "compressed-tensors",
            "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "int", "group_size": 32}}},
            "ignore": [
                "lm_head",
                "re:.*self_attn.*",
                "re:.*shared_experts.*",
                r"re:.*mlp\.(gate|up|gate_up|down)_proj.*",
            ],
        },
    },
}
GPT_OSS_120B: dict[str, Any] = {
    "model_type": "gpt_oss",
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "num_hidden_layers": 36,
    "layer_types": ["sliding_attention", "full_attention"] * 18,
    "sliding_window": 128,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "num_local_experts": 128,
    "num_experts_per_tok": 4,
    "vocab_size": 201088,
    "quantization_config": {
        "quant_method": "mxfp4",
        "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router", "lm_head"],
    },
}
LLAMA_4_SCOUT: dict[str, Any] = {"text_config": published_configs.LLAMA_4_SCOUT}
QWEN35_35B: dict[str, Any] = {"text_config": published_configs.QWEN_35_35B}


@pytest.mark.parametrize(
    ("config", "billions", "active_billions", "gigabytes", "kv_bytes"),
    [
        pytest.param(LLAMA_8B, 8.03, 8.03, 16.06, 131_072, id="llama-3.1-8b"),
        pytest.param(DEEPSEEK_V3, 671.0, 37.5, 673, 70_272, id="deepseek-v3"),
        pytest.param(KIMI_K25, 1026.4, 32.9, 594.2, 70_272, id="kimi-k2.5"),
        pytest.param(GPT_OSS_120B, 116.8, 5.7, 65, 73_728, id="gpt-oss-120b"),
        pytest.param(LLAMA_4_SCOUT, 107.8, 17.2, 215.5, 196_608, id="llama-4-scout"),
    ],
)
def test_weights_and_kv_are_the_published_ones(
    config: dict[str, Any], billions: float, active_billions: float, gigabytes: float, kv_bytes: int
) -> None:
    shape = model_shape("m", config)
    assert shape.num_weights / 1e9 == pytest.approx(billions, rel=0.001)
    assert shape.num_active_weights / 1e9 == pytest.approx(active_billions, rel=0.005)
    assert shape.weight_bytes / 1e9 == pytest.approx(gigabytes, rel=0.004)
    assert shape.kv_bytes_per_token() == kv_bytes


def test_llama_by_hand() -> None:
    """Per layer: q and o 4096 x 4096, k and v 4096 x 1024, three matrices of 4096 x 14336; 128,256 rows twice."""
    per_layer = 2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336
    assert model_shape("m", LLAMA_8B).num_weights == 32 * per_layer + 2 * 128256 * 4096


def test_bounded_layers_stop_growing() -> None:
    oss, scout = model_shape("m", GPT_OSS_120B), model_shape("m", LLAMA_4_SCOUT)
    assert oss.growing_kv_bytes_per_token() == 36_864
    assert oss.sequence_bytes(10_000) == 10_000 * 36_864 + 128 * 36_864  # half of the layers keep the window alone
    assert scout.growing_kv_bytes_per_token() == 49_152  # 12 of 48 layers see everything
    assert scout.sequence_bytes(1_200_000) == pytest.approx(1_200_000 * 49_152 + 8192 * 147_456)


def test_states_take_the_same_for_any_length() -> None:
    shape = model_shape("m", QWEN35_35B)
    assert shape.kv_bytes_per_token() == 20_480
    state_bytes = shape.sequence_bytes(0)
    assert state_bytes / 2**20 == pytest.approx(61.4, abs=0.1)
    assert shape.sequence_bytes(1000) == state_bytes + 1000 * 20_480


def test_a_latent_is_one_for_all_heads() -> None:
    assert model_shape("m", DEEPSEEK_V3).attention[0].cache == KVGroup.latent(range(61), 576)


def test_formats_follow_what_checkpoints_leave_out() -> None:
    kimi, oss = model_shape("m", KIMI_K25).formats, model_shape("m", GPT_OSS_120B).formats
    assert kimi == WeightFormats.experts_only(WeightFormat.INT4_G32)
    assert (oss.attention, oss.experts, oss.head) == (WeightFormat.BF16, WeightFormat.MXFP4, WeightFormat.BF16)
    only_mtp = {"quant_algo": "NVFP4", "exclude_modules": ["lm_head", "model.layers.61*"]}
    assert weight_formats(only_mtp).attention is WeightFormat.NVFP4  # layer 61 is not every layer
    every = {"quant_algo": "NVFP4", "exclude_modules": ["model.layers.0.self_attn*", "model.layers.1.self_attn*"]}
    assert weight_formats(every).attention is WeightFormat.BF16


@pytest.mark.parametrize(
    ("stored", "bytes_per_weight"),
    [(WeightFormat.INT4_G32, 0.5625), (WeightFormat.MXFP4, 0.53125), (WeightFormat.NVFP4, 0.5625)],
)
def test_scales_count(stored: WeightFormat, bytes_per_weight: float) -> None:
    assert stored.bytes_per_weight == bytes_per_weight


def test_what_is_not_known_is_refused() -> None:
    with pytest.raises(UnsupportedModel, match="kimi_linear"):
        model_shape("Kimi-K3", {"text_config": {"model_type": "kimi_linear", "num_hidden_layers": 93}})
    with pytest.raises(UnsupportedModel, match="bitsandbytes"):
        weight_formats({"quant_method": "bitsandbytes"})


def test_expected_distinct_experts() -> None:
    """One token uses its 8; two share on average 8 * 8 / 256 of them; very many use all."""
    experts = model_shape("m", DEEPSEEK_V3).experts
    assert experts is not None
    assert experts.distinct(1) == pytest.approx(8)
    assert experts.distinct(2) == pytest.approx(16 - 64 / 256)
    assert experts.distinct(10_000) == pytest.approx(256)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"vocab_size": None}, "vocab_size is None; expected"),
        ({"num_hidden_layers": "4"}, "num_hidden_layers is 4; expected a whole number from 1 to 10000"),
        ({"num_hidden_layers": 10**12}, "num_hidden_layers is 1000000000000; expected"),
        ({"hidden_size": 1.5}, "hidden_size is 1.5; expected"),
        ({"num_attention_heads": 0}, "num_attention_heads is 0; expected"),
        ({"num_attention_heads": 8192}, "8192 heads share a hidden_size of 4096"),
        ({"intermediate_size": "x"}, "intermediate_size is x; expected"),
        ({"text_config": 5}, "not the config of a model"),
        ({"num_experts": 4}, "has no 'experts_per_token'"),
        ({"num_experts": 4, "num_experts_per_tok": 9}, "9 of 4 experts are used"),
        ({"quantization_config": "fp8"}, "not a quantization config"),
        ({"quantization_config": {"quant_method": "fp8", "ignore": ["re:("]}}, "not a quantization config"),
        ({"model_type": "gemma3_text", "sliding_window": 8, "layer_types": ["full_attention"]}, "not the config"),
    ],
)
def test_what_is_no_config_is_one_sentence(changes: dict[str, Any], problem: str) -> None:
    """Red when a size that is none reaches the arithmetic, or takes memory."""
    with pytest.raises(UnsupportedModel, match=problem):
        model_shape("m", {**LLAMA_8B, **changes})
    with pytest.raises(UnsupportedModel, match="m: the config of the model has no 'hidden_size'"):
        model_shape("m", {"model_type": "llama"})
