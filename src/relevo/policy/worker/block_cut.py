"""Cuts the blocks of a sender to the size of the receiver's: pure arithmetic over block tables."""

from __future__ import annotations

from collections.abc import Sequence

from relevo.core.cut import CutBlock, Piece
from relevo.core.ids import BlockId
from relevo.policy.worker.table_rules import NO_BLOCK


def cut_block(
    table: Sequence[BlockId], own_size: int, size: int, index: int, num_tokens: int, group: int = 0
) -> CutBlock:
    """The receiver's block `index`, of `size` tokens, as far as the first `num_tokens` of the sequence reach into it.
    `table`: the sender's, of blocks of `own_size` tokens; it has all that is asked for."""
    start, end = index * size, min((index + 1) * size, num_tokens)
    pieces = []
    while start < end:
        entry, first = divmod(start, own_size)
        assert table[entry] != NO_BLOCK, "what a receiver is sent is kept"
        count = min(own_size - first, end - start)
        pieces.append(Piece(table[entry], first, start - index * size, count))
        start += count
    return CutBlock(group, tuple(pieces))
