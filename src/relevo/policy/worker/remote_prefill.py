"""A prompt that this worker computes for another one: where it goes, and how much of it the receiver has.

Owns the progress. Whole blocks go out as soon as a chunk has finished them, the partial last one at the end. Knows no
transport: `policy.worker.core` says what is written, the transport's events what has arrived.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from relevo.core.cut import LocalBlock
from relevo.core.handoff import KVPath
from relevo.core.ids import BlockId, RequestId
from relevo.core.kv import Reservation
from relevo.policy.worker.block_cut import cut_block


@dataclass(frozen=True, slots=True)
class ComputedPrefix:
    """The KV of prompt tokens [0, num_tokens) is computed; what the receiver lacks of it goes out.

    `blocks` are this worker's for reservation.block_ids[first_index : first_index + len(blocks)], cut where those have
    another size; the last ones are followed by what the other KV groups have for the token after the prompt. Each block
    of the receiver is in one prefix only: once it is sealed, the receiver may give it to another request.
    """

    request_id: RequestId
    reservation: Reservation
    path: KVPath
    first_index: int
    blocks: tuple[LocalBlock, ...]
    num_tokens: int  # a multiple of the receiver's block size, or the whole prompt when `is_last`
    is_last: bool


@dataclass(slots=True, eq=False, kw_only=True)
class RemotePrefill:
    reservation: Reservation
    path: KVPath  # to the receiver
    num_prompt_tokens: int
    num_found_tokens: int  # of the receiver's hits, those that no worker computed for this request
    block_size: int  # of the blocks in which it is computed
    is_computed: bool = False
    num_written_blocks: int = field(init=False)  # of the reservation, the receiver's hits included
    num_sealed_tokens: int = field(init=False)
    num_handed_tokens: int = 0  # sealed on the receiver, its own hits excluded
    transfer_s: float = 0.0

    def __post_init__(self) -> None:
        self.num_sealed_tokens = self.reservation.num_hit_tokens
        self.num_written_blocks = self.reservation.num_hit_blocks

    @property
    def is_sealed(self) -> bool:
        """The receiver has the whole prompt."""
        return self.is_computed and self.num_sealed_tokens >= self.num_prompt_tokens

    def advance(
        self, num_computed: int, block_ids: Sequence[BlockId], tail: Callable[[], list[LocalBlock]] = list
    ) -> ComputedPrefix | None:
        """The KV of `num_computed` tokens lies in `block_ids`, and in `tail` what of the other KV groups the next token
        sees. None: the receiver lacks no whole block of it."""
        self.is_computed = num_computed == self.num_prompt_tokens
        own_size, size = self.block_size, self.reservation.block_size
        first, num_whole = self.num_written_blocks, num_computed // size
        end = -(-num_computed // size) if self.is_computed else num_whole
        if end <= first and not self.is_computed:
            return None
        self.num_written_blocks = max(first, end)
        blocks: Sequence[LocalBlock] = block_ids[first:end]
        if size != own_size:
            blocks = [cut_block(block_ids, own_size, size, index, num_computed) for index in range(first, end)]
        return ComputedPrefix(
            request_id=self.reservation.request_id,
            reservation=self.reservation,
            path=self.path,
            first_index=first,
            blocks=(*blocks, *(tail() if self.is_computed else ())),
            num_tokens=num_computed if self.is_computed else num_whole * size,
            is_last=self.is_computed,
        )

    def seal(self, num_tokens: int) -> int:
        """The receiver has the first `num_tokens`; returns how many of them are new to it."""
        num_new = max(0, num_tokens - self.num_sealed_tokens)
        self.num_sealed_tokens += num_new
        self.num_handed_tokens += num_new
        return num_new
