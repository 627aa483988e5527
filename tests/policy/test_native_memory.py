"""What the native backend holds of a model on a CPU. Red when a format that it does not multiply is counted as it is
stored, or one that it does multiply as floats."""

from __future__ import annotations

from typing import Any

import pytest

from relevo.policy.perf.memory_plan import MemoryLimits
from relevo.policy.perf.model_config import model_shape
from relevo.policy.perf.native_memory import PROCESS_BYTES, held_formats, step_bytes
from relevo.policy.perf.parallelism import Parallelism
from relevo.policy.perf.rank_memory import MemoryAsk, layout_memory
from relevo.policy.perf.weight_formats import WeightFormat, WeightFormats

F32, BF16, INT4 = WeightFormat.F32, WeightFormat.BF16, WeightFormat.INT4_G32
CONFIG: dict[str, Any] = {
    "model_type": "qwen3_moe",
    "dtype": "bfloat16",
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "vocab_size": 1000,
}
PACKED = {
    "quant_method": "compressed-tensors",
    "format": "pack-quantized",
    "config_groups": {"g": {"weights": {"num_bits": 4, "type": "int", "group_size": 64}}},
    "ignore": ["lm_head", "re:.*self_attn.*"],
}
FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True, "desc_act": False}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}


def formats(**quantization: Any) -> WeightFormats:
    return held_formats({**CONFIG, "quantization_config": quantization})


@pytest.mark.parametrize(("dtype", "held"), [("bfloat16", BF16), ("float16", BF16), ("float32", F32), (None, F32)])
def test_floats_are_held_as_they_are_stored(dtype: str | None, held: WeightFormat) -> None:
    """Without a dtype a config means float32."""
    found = held_formats({**CONFIG, "dtype": dtype})
    assert {found.attention, found.dense, found.experts, found.head, found.embedding} == {held}


@pytest.mark.parametrize(
    ("quantization", "attention", "experts"),
    [
        (PACKED, BF16, INT4),
        (FP8, BF16, BF16),
        (GPTQ, INT4, INT4),
        (GPTQ | {"desc_act": True}, BF16, BF16),
        (GPTQ | {"sym": False}, BF16, BF16),
        (AWQ, BF16, BF16),
        ({"quant_method": "mxfp4"}, BF16, BF16),
    ],
)
def test_what_is_not_multiplied_as_stored_becomes_bfloat16(
    quantization: dict[str, Any], attention: WeightFormat, experts: WeightFormat
) -> None:
    found = formats(**quantization)
    assert (found.attention, found.experts, found.embedding) == (attention, experts, BF16)


def test_a_float32_model_is_twice_a_bfloat16_one() -> None:
    ask = MemoryAsk(device_bytes=1e9, limits=MemoryLimits(max_step_tokens=64, max_rows=4), is_native=True)
    sizes = []
    for dtype in ("bfloat16", "float32"):
        config = CONFIG | {"dtype": dtype}
        stage = layout_memory(model_shape("m", config, held_formats(config)), Parallelism(), ask).stages[0]
        assert stage.runtime_bytes == PROCESS_BYTES
        sizes.append(stage.weight_bytes)
    routers = 2 * 4 * 128 * 4  # float32 in both
    assert sizes[1] - routers == 2 * (sizes[0] - routers)


def test_buffers_grow_with_steps_and_rows() -> None:
    shape = model_shape("m", CONFIG)
    small, long, wide = (
        step_bytes(shape, MemoryLimits(max_step_tokens=tokens, max_rows=rows))
        for tokens, rows in ((64, 4), (128, 4), (64, 8))
    )
    assert wide - small == 4 * 1000 * 4
    assert long - 4 * 1000 * 4 == 2 * (small - 4 * 1000 * 4)
