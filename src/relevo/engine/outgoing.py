"""The sending side of a handoff: which part of a prompt computed here the receiver already has.

Pure bookkeeping, no I/O. Whole blocks go out as soon as a chunk has finished them, the partial last one at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from relevo.core.handoff import KVPath
from relevo.core.ids import BlockId
from relevo.core.kv import Reservation
from relevo.policy.worker.scheduler import ComputedPrefix


@dataclass(slots=True)
class RemotePrefill:
    reservation: Reservation
    path: KVPath
    num_handed_tokens: int = 0  # sealed on the receiver, its own hits excluded
    num_sealed_tokens: int = field(init=False)
    transfer_s: float = 0.0
    _num_written_blocks: int | None = None
    _num_last_tokens: int | None = None  # known once the last chunk is computed

    def __post_init__(self) -> None:
        self.num_sealed_tokens = self.reservation.num_hit_tokens

    @property
    def is_sealed(self) -> bool:
        return self._num_last_tokens is not None and self.num_sealed_tokens >= self._num_last_tokens

    def advance(self, prefix: ComputedPrefix, block_size: int) -> Sequence[tuple[int, Sequence[BlockId]]]:
        """Runs of (index of the first block, local block ids) that became complete and the receiver lacks.

        Each block is in one run: once it is sealed, the receiver may give it to another request.
        """
        if prefix.is_last:
            self._num_last_tokens = prefix.num_tokens
        first = self._num_written_blocks
        if first is None:
            first = self.reservation.num_hit_tokens // block_size
        end = -(-prefix.num_tokens // block_size) if prefix.is_last else prefix.num_tokens // block_size
        self._num_written_blocks = max(first, end)
        return [(first, prefix.block_ids[first:end])] if end > first else []

    def seal(self, num_tokens: int) -> int:
        """The receiver has the first `num_tokens`; returns how many of them are new to it."""
        num_new = max(0, num_tokens - self.num_sealed_tokens)
        self.num_sealed_tokens += num_new
        self.num_handed_tokens += num_new
        return num_new
