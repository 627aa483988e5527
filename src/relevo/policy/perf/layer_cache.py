"""What each layer of a model keeps of the sequences that fill a pool of KV blocks. Pure."""

from __future__ import annotations

from relevo.core.kv import KVLayout
from relevo.policy.worker.table_rules import num_blocks_of, table_rules


def layer_cache_bytes(
    layout: KVLayout, num_blocks: int, max_sequence_tokens: int, max_step_tokens: int
) -> dict[int, float]:
    """By layer, while the pool is full of sequences of the longest length: windows and chunks keep their span of each
    of them, states their size, all others every token."""
    taken = num_blocks_of(table_rules(layout), max_sequence_tokens, layout.block_size, max_step_tokens)
    num_sequences = num_blocks / taken
    found: dict[int, float] = {}
    for group in layout.groups:
        kept = group.most_kept(max_sequence_tokens) * group.bytes_per_token(layout.dtype) + group.bytes_per_sequence
        found |= dict.fromkeys(group.layers, num_sequences * kept / group.num_layers)
    return found
