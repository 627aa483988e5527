"""A prompt that this worker computes for another one: where it goes, and how much of it the receiver has.

Owns the progress. Whole blocks go out as soon as a chunk has finished them, the partial last one at the end. Knows no
transport: `policy.worker.core` says what is written, the transport's events what has arrived.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from relevo.core.handoff import KVPath
from relevo.core.ids import BlockId, RequestId
from relevo.core.kv import Reservation


@dataclass(frozen=True, slots=True)
class ComputedPrefix:
    """The KV of prompt tokens [0, num_tokens) is computed; what the receiver lacks of it goes out.

    `block_ids` are this worker's blocks for reservation.block_ids[first_index : first_index + len(block_ids)]; the last
    ones are followed by what the other KV groups have for the token after the prompt. Each
    block is in one prefix only: once it is sealed, the receiver may give it to another request.
    """

    request_id: RequestId
    reservation: Reservation
    path: KVPath
    first_index: int
    block_ids: tuple[BlockId, ...]
    num_tokens: int  # a multiple of the block size, or the whole prompt when `is_last`
    is_last: bool


@dataclass(slots=True, eq=False, kw_only=True)
class RemotePrefill:
    reservation: Reservation
    path: KVPath  # to the receiver
    num_prompt_tokens: int
    num_found_tokens: int  # of the receiver's hits, those that no worker computed for this request
    block_size: int
    is_computed: bool = False
    num_written_blocks: int = field(init=False)  # of the reservation, the receiver's hits included
    num_sealed_tokens: int = field(init=False)
    num_handed_tokens: int = 0  # sealed on the receiver, its own hits excluded
    transfer_s: float = 0.0

    def __post_init__(self) -> None:
        self.num_sealed_tokens = self.reservation.num_hit_tokens
        self.num_written_blocks = self.num_sealed_tokens // self.block_size

    @property
    def is_sealed(self) -> bool:
        """The receiver has the whole prompt."""
        return self.is_computed and self.num_sealed_tokens >= self.num_prompt_tokens

    def advance(
        self, num_computed: int, block_ids: Sequence[BlockId], tail: Callable[[], list[BlockId]] = list
    ) -> ComputedPrefix | None:
        """The KV of `num_computed` tokens lies in `block_ids`, and in `tail` what of the other KV groups the next token
        sees. None: the receiver lacks no whole block of it."""
        self.is_computed = num_computed == self.num_prompt_tokens
        first, num_whole = self.num_written_blocks, num_computed // self.block_size
        end = -(-num_computed // self.block_size) if self.is_computed else num_whole
        if end <= first and not self.is_computed:
            return None
        self.num_written_blocks = max(first, end)
        return ComputedPrefix(
            request_id=self.reservation.request_id,
            reservation=self.reservation,
            path=self.path,
            first_index=first,
            block_ids=(*block_ids[first:end], *(tail() if self.is_computed else ())),
            num_tokens=num_computed if self.is_computed else num_whole * self.block_size,
            is_last=self.is_computed,
        )

    def seal(self, num_tokens: int) -> int:
        """The receiver has the first `num_tokens`; returns how many of them are new to it."""
        num_new = max(0, num_tokens - self.num_sealed_tokens)
        self.num_sealed_tokens += num_new
        self.num_handed_tokens += num_new
        return num_new
