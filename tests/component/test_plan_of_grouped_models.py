"""`relevo plan memory` and the engine's blocks, for models whose layers keep different things: how many tokens fit.

Red when one of them counts a window or chunk by another rule, or when groups of unlike width waste more than is said.
"""

from __future__ import annotations

from typing import Any

import pytest

from relevo.build.model import kv_layout
from relevo.engine.models.families import config_from_hf
from relevo.policy.perf.memory_plan import MemoryLimits
from relevo.policy.perf.model_config import model_shape
from relevo.policy.perf.parallelism import Parallelism
from relevo.policy.perf.rank_memory import MemoryAsk, layout_memory
from relevo.policy.worker.table_rules import num_pool_tokens, table_rules

GIB, SIZE, STEP = 2**30, 16, 512
ROPE = {"rope_type": "default", "rope_theta": 10000.0}
MODELS: dict[str, tuple[dict[str, Any], list[int]]] = {  # config; layers of each KV group
    "gemma-3-27b": (
        {
            "model_type": "gemma3_text",
            "hidden_size": 5376,
            "intermediate_size": 21504,
            "num_hidden_layers": 62,
            "num_attention_heads": 32,
            "num_key_value_heads": 16,
            "head_dim": 128,
            "query_pre_attn_scalar": 168,
            "sliding_window": 1024,
            "layer_types": [f"{'full' if (n + 1) % 6 == 0 else 'sliding'}_attention" for n in range(62)],
            "vocab_size": 262208,
            "max_position_embeddings": 131072,
            "rms_norm_eps": 1e-6,
        },
        [10, 9, 9, 9, 9, 8, 8],
    ),
    "gpt-oss-20b": (
        {
            "model_type": "gpt_oss",
            "hidden_size": 2880,
            "intermediate_size": 2880,
            "num_hidden_layers": 24,
            "num_attention_heads": 64,
            "num_key_value_heads": 8,
            "head_dim": 64,
            "num_local_experts": 32,
            "num_experts_per_tok": 4,
            "sliding_window": 128,
            "layer_types": ["sliding_attention", "full_attention"] * 12,
            "vocab_size": 201088,
            "max_position_embeddings": 131072,
            "rms_norm_eps": 1e-5,
            "rope_parameters": ROPE,
        },
        [12, 12],
    ),
    "llama-4-scout": (
        {
            "model_type": "llama4_text",
            "hidden_size": 5120,
            "intermediate_size": 8192,
            "intermediate_size_mlp": 16384,
            "interleave_moe_layer_step": 1,
            "num_hidden_layers": 48,
            "num_attention_heads": 40,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "num_local_experts": 16,
            "num_experts_per_tok": 1,
            "attention_chunk_size": 8192,
            "vocab_size": 202048,
            "max_position_embeddings": 10485760,
            "rms_norm_eps": 1e-5,
            "rope_parameters": ROPE,
        },
        [12, 12, 12, 12],
    ),
}


@pytest.mark.parametrize("kv_gib", [4, 40])
@pytest.mark.parametrize("model", MODELS)
def test_the_plan_says_how_many_tokens_the_engine_holds(model: str, kv_gib: int) -> None:
    """Of one sequence that takes all. The engine's blocks are all as wide as the widest group: it holds fewer by what
    narrower ones leave unused and by the ends of blocks, and never more."""
    config, num_layers = MODELS[model]
    layout = kv_layout(config_from_hf(config, "config.json"), "hash", "bfloat16", SIZE)
    assert [group.num_layers for group in layout.groups] == num_layers
    shape = model_shape(model, config)
    limits = MemoryLimits(max_step_tokens=STEP, block_size=SIZE, max_sequence_tokens=131072)
    weights = layout_memory(shape, Parallelism(), MemoryAsk(device_bytes=0.0, limits=limits, overhead_bytes=0.0))
    device_bytes = weights.stages[0].weight_bytes + kv_gib * GIB
    planned = layout_memory(shape, Parallelism(), MemoryAsk(device_bytes=device_bytes, limits=limits, overhead_bytes=0))
    num_held = num_pool_tokens(table_rules(layout), kv_gib * GIB // layout.bytes_per_block, SIZE, STEP)
    windows = layout.groups[1:]
    unused = sum((1 - group.num_layers / num_layers[0]) * (group.span + STEP) for group in windows)
    ends = SIZE + 2 * SIZE * len(windows)
    assert 0 <= planned.num_tokens - num_held <= unused + ends
    assert unused + ends < 0.12 * (num_held + len(windows) * (windows[0].span + STEP))
