"""`relevo plan memory` and the engine's blocks, for models whose layers keep different things: how many tokens fit.

Red when one of them counts a window or chunk by another rule, or when groups of unlike width waste more than is said.
"""

from __future__ import annotations

from typing import Any

import pytest

from published_configs import GEMMA_3_27B, GPT_OSS_20B, LLAMA_4_SCOUT
from relevo.build.model import kv_layout
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
