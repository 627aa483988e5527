"""Which layers each rank of a worker computes, by the bytes that its model's files and its KV cache have for them."""

from __future__ import annotations

import re

from relevo.build.configs import WorkerConfig
from relevo.build.model_work import packed_bytes
from relevo.core.kv import KVLayout
from relevo.engine.loaders.model_files import ModelFiles, StoredTensor
from relevo.engine.models.weight_plan import EMBEDDING, HEAD
from relevo.policy.perf.layer_cache import layer_cache_bytes
from relevo.policy.perf.stages import even_stages

_OF_LAYER = re.compile(r"model\.layers\.(\d+)\.")


def stage_layers(files: ModelFiles, config: WorkerConfig, layout: KVLayout) -> list[range]:
    """The layers of each rank, the last one being the worker's own."""
    num_layers = files.config.num_layers
    if config.pipeline_parallel_size == 1:
        return [range(num_layers)]
    sizes, ends = [0.0] * num_layers, {EMBEDDING: 0.0, HEAD: 0.0}
    for stored in files.stored:
        if (layer := _OF_LAYER.match(stored.name)) is not None and int(layer[1]) < num_layers:
            sizes[int(layer[1])] += _held_bytes(stored, config)
        elif stored.name in ends:
            ends[stored.name] += _held_bytes(stored, config)
    kept = layer_cache_bytes(layout, config.num_blocks, config.max_model_len, config.max_num_batched_tokens)
    for layer_index, num_bytes in kept.items():
        sizes[layer_index] += num_bytes
    return even_stages(sizes, (ends[EMBEDDING], ends[HEAD] or ends[EMBEDDING]), config.pipeline_parallel_size)


def _held_bytes(stored: StoredTensor, config: WorkerConfig) -> float:
    return packed_bytes(stored, config) if len(stored.shape) == 2 else stored.num_bytes
