"""`relevo plan memory` and the engine's blocks, for models whose layers keep different things: how many tokens fit.

Red when one of them counts a window, chunk or state by another rule, or when groups of unlike width waste more than is
said.
"""

from __future__ import annotations

from typing import Any

import pytest

from published_configs import GEMMA_3_27B, GPT_OSS_20B, LLAMA_4_SCOUT, QWEN_35_35B
from relevo.build.model import kv_layout
from relevo.core.kv import KVLayout
from relevo.engine.models.families import config_from_hf
from relevo.policy.perf.memory_plan import MemoryLimits
from relevo.policy.perf.model_config import model_shape
from relevo.policy.perf.parallelism import Parallelism
from relevo.policy.perf.rank_memory import MemoryAsk, layout_memory
from relevo.policy.worker.table_rules import num_pool_tokens, table_rules

GIB, SIZE, STEP = 2**30, 16, 512
MODELS: dict[str, tuple[dict[str, Any], list[int]]] = {  # config; layers of each KV group
    "gemma-3-27b": (GEMMA_3_27B, [10, 9, 9, 9, 9, 8, 8]),
    "gpt-oss-20b": (GPT_OSS_20B, [12, 12]),
    "llama-4-scout": (LLAMA_4_SCOUT, [12, 12, 12, 12]),
}


@pytest.mark.parametrize("kv_gib", [4, 40])
@pytest.mark.parametrize("model", MODELS)
def test_the_plan_says_how_many_tokens_the_engine_holds(model: str, kv_gib: int) -> None:
    """Of one sequence that takes all. The engine's blocks are all as wide as the widest group: it holds fewer by what
    narrower ones leave unused and by the ends of blocks, and never more."""
    config, num_layers = MODELS[model]
    layout = kv_layout(config_from_hf(config, "config.json"), "hash", "bfloat16", SIZE)
    assert [group.num_layers for group in layout.groups] == num_layers
    num_planned, num_held = planned_tokens(model, config, SIZE, kv_gib), held_tokens(layout, kv_gib)
    windows = layout.groups[1:]
    unused = sum((1 - group.num_layers / num_layers[0]) * (group.span + STEP) for group in windows)
    ends = SIZE + 2 * SIZE * len(windows)
    assert 0 <= num_planned - num_held <= unused + ends
    assert unused + ends < 0.12 * (num_held + len(windows) * (windows[0].span + STEP))


@pytest.mark.parametrize("kv_gib", [1, 40])
@pytest.mark.parametrize("block_size", [105, 128, 256])
def test_the_plan_says_how_many_tokens_the_engine_holds_beside_a_state(block_size: int, kv_gib: int) -> None:
    """61.4 MiB of states; the engine's take whole blocks, as many layers in each as fit."""
    layout = kv_layout(config_from_hf(QWEN_35_35B, "config.json"), "hash", "bfloat16", block_size)
    num_planned = planned_tokens("qwen3.5-35b", QWEN_35_35B, block_size, kv_gib)
    (rule,) = table_rules(layout)
    unused_bytes = rule.num_state_blocks * layout.bytes_per_block - layout.bytes_per_sequence
    num_unused = unused_bytes / layout.growing_bytes_per_token
    num_held = held_tokens(layout, kv_gib)
    assert num_unused - block_size <= num_planned - num_held <= num_unused + block_size
    assert num_held > 0


def planned_tokens(model: str, config: dict[str, Any], block_size: int, kv_gib: int) -> int:
    """Of one sequence, on a device with so much memory beside the weights."""
    shape = model_shape(model, config)
    limits = MemoryLimits(max_step_tokens=STEP, block_size=block_size, max_sequence_tokens=131072)
    weights = layout_memory(shape, Parallelism(), MemoryAsk(device_bytes=0.0, limits=limits, overhead_bytes=0.0))
    device_bytes = weights.stages[0].weight_bytes + kv_gib * GIB
    ask = MemoryAsk(device_bytes=device_bytes, limits=limits, overhead_bytes=0)
    return layout_memory(shape, Parallelism(), ask).num_tokens


def held_tokens(layout: KVLayout, kv_gib: int) -> int:
    num_blocks = kv_gib * GIB // layout.bytes_per_block
    return num_pool_tokens(table_rules(layout), num_blocks, layout.block_size, STEP)
