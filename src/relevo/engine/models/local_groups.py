"""KV groups of decoders in which some layers see a part of the context.

Blocks of all groups are equal, as large as the widest needs (docs/adr/0014). So the layers that keep less than every
token are divided into groups of no more layers than keep every token, as even as can be.
"""

from __future__ import annotations

from itertools import accumulate

from relevo.core.kv import KVGroup, KVKind
from relevo.core.model import ModelConfig


def groups_by_reach(config: ModelConfig) -> tuple[KVGroup, ...]:
    """First the layers that see everything. Where there are none, one group that keeps every token: a table that
    grows with the sequence is what everything else is counted by."""
    local, num_layers = config.local, config.num_layers
    if local is None or not 0 < len(local.layers) < num_layers:
        return (_full(config, tuple(range(num_layers))),)
    layers = tuple(layer for layer in range(num_layers) if layer not in local.layers)
    kind, span = (KVKind.WINDOW, local.window) if local.window else (KVKind.CHUNK, local.chunk)
    num_groups = -(-len(local.layers) // len(layers))
    smaller, num_larger = divmod(len(local.layers), num_groups)
    sizes = [smaller + 1] * num_larger + [smaller] * (num_groups - num_larger)
    parts = [local.layers[end - size : end] for size, end in zip(sizes, accumulate(sizes), strict=True)]
    return (_full(config, layers), *(_full(config, part).bounded(kind, span) for part in parts))


def _full(config: ModelConfig, layers: tuple[int, ...]) -> KVGroup:
    return KVGroup.full(layers, config.num_kv_heads, config.head_size)
