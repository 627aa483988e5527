"""Blocks of another size, put together from those of an arena.

A block is [L, 2, K, S, D]: a part of its tokens lies in one run of bytes per layer, key or value, and head. The sender
puts the receiver's blocks together and these travel as any others do. Owns where in a block a token lies. Which tokens
go where is `policy.worker.block_cut`'s.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from relevo.core.cut import CutBlock, LocalBlock
from relevo.core.kv import DTYPE_BYTES, KVLayout
from relevo.kv.arena import Arena
from relevo.kv.lent_blocks import LentBlocks
from relevo.kv.transfer import whole


def lend(arena: Arena, blocks: Sequence[LocalBlock], block_size: int) -> LentBlocks:
    """What a sender reads of its arena for blocks of a receiver that have so many tokens."""
    cuts = [block for block in blocks if isinstance(block, CutBlock)]
    if not cuts:
        return LentBlocks(arena.spans(whole(blocks)))
    num_bytes = len(cuts) * arena.layout.bytes_of_blocks(block_size)
    return LentBlocks.of_copy(partial(put_together, arena, cuts, block_size), num_bytes)


def contents(arena: Arena, blocks: Sequence[LocalBlock], block_size: int) -> list[memoryview]:
    """The bytes of each, as they lie in the arena of a receiver with blocks of so many tokens."""
    cuts = [block for block in blocks if isinstance(block, CutBlock)]
    if not cuts:
        return [arena.block(block_id) for block_id in whole(blocks)]
    made, size = memoryview(put_together(arena, cuts, block_size)), arena.layout.bytes_of_blocks(block_size)
    return [made[at : at + size] for at in range(0, len(made), size)]


def put_together(arena: Arena, cuts: Sequence[CutBlock], block_size: int) -> bytearray:
    """One block of so many tokens after the other, as they lie in the receiver's arena."""
    layout, block_bytes = arena.layout, arena.layout.bytes_of_blocks(block_size)
    made = bytearray(len(cuts) * block_bytes)
    for number, cut in enumerate(cuts):
        num_runs, columns = _runs(layout, cut.group)
        width = sum(columns)
        target = np.frombuffer(made, np.uint8, num_runs * width * block_size, number * block_bytes)
        to_runs = target.reshape(num_runs, -1)
        for piece in cut.pieces:
            own = np.frombuffer(arena.block(piece.block_id), np.uint8, num_runs * width * layout.block_size)
            from_runs = own.reshape(num_runs, -1)
            to_start = from_start = 0
            for column in columns:
                to, at = to_start + piece.place * column, from_start + piece.first * column
                num_bytes = piece.num_tokens * column
                to_runs[:, to : to + num_bytes] = from_runs[:, at : at + num_bytes]
                to_start += block_size * column
                from_start += layout.block_size * column
    return made


def _runs(layout: KVLayout, group: int) -> tuple[int, tuple[int, ...]]:
    """(runs of a block of the group, bytes of a token in each of the parts that lie behind each other in a run)."""
    shape = layout.groups[group]
    num_runs = shape.num_layers * shape.num_kv_heads * (2 if shape.value_size else 1)
    number_bytes = shape.key_size * DTYPE_BYTES[layout.dtype]
    scale_bytes = shape.bytes_per_token(layout.dtype) // num_runs - number_bytes
    return num_runs, (number_bytes, scale_bytes) if scale_bytes else (number_bytes,)
