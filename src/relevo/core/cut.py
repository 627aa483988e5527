"""Where a block of one size gets its tokens from, if they lie in blocks of another."""

from __future__ import annotations

from dataclasses import dataclass

from relevo.core.ids import BlockId


@dataclass(frozen=True, slots=True)
class Piece:
    """A run of tokens in a block of the sender."""

    block_id: BlockId
    first: int  # token of that block
    place: int  # of that token in the block that is made
    num_tokens: int


@dataclass(frozen=True, slots=True)
class CutBlock:
    """A block as large as the receiver's, made from the sender's: zeroes where there is no piece."""

    group: int  # place among the layout's KV groups; of all pieces
    pieces: tuple[Piece, ...]


LocalBlock = BlockId | CutBlock  # of a sender; all of one write are the one or the other
