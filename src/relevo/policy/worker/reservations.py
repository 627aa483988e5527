"""Owns the room that this worker, as the receiver of handoffs, has granted and not yet taken over.

Life of a block here: RESERVED (granted, nothing sealed yet) → WRITING (the writer is at work) →
SEALED, until the decode takes it over. A dropped reservation frees its blocks, except that blocks a writer may still
touch are QUARANTINED until `release` says that the writer has let go. No clock: a driver's timer may ask a writer to
let go but never releases in its stead. A gateway that dies leaves orphans behind: rooms into which a writer may still
write, and no gateway that would ask it. Every other one is told of them, asks all workers to let go, and releases them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from relevo.core.ids import BlockHash, BlockId, PeerId, RequestId, WorkerId
from relevo.core.kv import Reservation
from relevo.core.request import EngineRequest
from relevo.policy.worker.block_pool import BlockPool
from relevo.policy.worker.fair_turns import Flow, flow_of
from relevo.policy.worker.group_tables import NO_HITS, GroupHits
from relevo.policy.worker.intake import num_blocks_for, num_copy_blocks
from relevo.policy.worker.table_rules import TableRule, num_tail_blocks


@dataclass(slots=True, eq=False, kw_only=True)
class Grant:
    reservation: Reservation
    copy_block_ids: list[BlockId]  # for partial last blocks and states of other continuations; no writer sees them
    hashes: list[BlockHash]  # of the full prompt blocks; empty without prefix caching
    num_prompt_tokens: int
    flow: Flow
    num_slots: int  # continuations that may start at once; others wait for slots
    num_sealed_tokens: int
    found: GroupHits = NO_HITS  # of the KV groups after the first; held, and no writer's

    def num_sealed_blocks(self, block_size: int) -> int:
        """Blocks that no writer touches any more; a partial last block counts once the whole prompt is sealed."""
        if self.num_sealed_tokens == self.num_prompt_tokens:
            return len(self.reservation.block_ids)
        return self.num_sealed_tokens // block_size


@dataclass(slots=True)
class Quarantine:
    """Blocks of a dropped grant into which a writer may still write."""

    block_ids: list[BlockId]
    keeper: PeerId | None  # the gateway that will say that the writer has let go; None: it is gone, any other may


class Reservations:
    def __init__(
        self,
        pool: BlockPool,
        *,
        worker_id: WorkerId,
        epoch: int,
        block_size: int,
        more_groups: Sequence[TableRule] = (),
    ) -> None:
        self._pool = pool
        self._more_groups = tuple(more_groups)
        self._worker_id = worker_id
        self._epoch = epoch
        self._block_size = block_size
        self._grants: dict[RequestId, Grant] = {}
        self._quarantines: dict[RequestId, Quarantine] = {}

    def take_epoch(self, epoch: int) -> None:
        """Of what is granted from here on."""
        self._epoch = epoch

    def __contains__(self, request_id: RequestId) -> bool:
        return request_id in self._grants

    def __len__(self) -> int:
        return len(self._grants)

    @property
    def grants(self) -> Iterable[Grant]:
        """Of prompts that are still to arrive."""
        return self._grants.values()

    @property
    def num_slots(self) -> int:
        """Kept for continuations that will decode here once their prompts have arrived."""
        return sum(grant.num_slots for grant in self._grants.values())

    def grant(
        self,
        request: EngineRequest,
        hashes: list[BlockHash],
        hits: list[BlockId],
        num_spare: int,
        num_slots: int,
        found: GroupHits = NO_HITS,
    ) -> Reservation | None:
        """Room for the whole prompt, in KV groups after the first for what its next token sees, and for the copies that
        `num_slots` continuations need; None if it would leave less than `num_spare`. `hits`, `found`: blocks that the
        pool has just given for the begin of the prompt, and for its end in the other groups.

        Requires a prompt that fits the empty pool.
        """
        num_prompt = len(request.prompt_token_ids)
        num_prompt_blocks = num_blocks_for(num_prompt, self._block_size)
        num_found_tokens = found.num_blocks * self._block_size
        num_prompt_blocks += num_tail_blocks(self._more_groups, num_prompt, num_found_tokens)
        num_left, more = self._pool.num_blocks - num_prompt_blocks, self._more_groups
        num_blocks = num_prompt_blocks + num_copy_blocks(request, num_slots, self._block_size, num_left, more)
        new = self._pool.take([*hits, *found.all], num_blocks - len(hits), num_spare)
        if new is None:
            return None
        block_ids = [*hits, *new]
        prompt_blocks = tuple(block_ids[:num_prompt_blocks])
        reservation = Reservation(
            request_id=request.request_id,
            worker_id=self._worker_id,
            epoch=self._epoch,
            block_size=self._block_size,
            block_ids=prompt_blocks,
            generations=tuple(self._pool.generation(block_id) for block_id in prompt_blocks),
            num_hit_tokens=len(hits) * self._block_size,
            num_found_tokens=num_found_tokens,
        )
        self._grants[request.request_id] = Grant(
            reservation=reservation,
            copy_block_ids=block_ids[num_prompt_blocks:],
            hashes=hashes,
            num_prompt_tokens=num_prompt,
            flow=flow_of(request),
            num_slots=num_slots,
            num_sealed_tokens=reservation.num_hit_tokens,
            found=found,
        )
        return reservation

    def seal(self, request_id: RequestId, num_tokens: int) -> None:
        """The first `num_tokens` tokens are complete; whole blocks can be hit from now on. Unknown request: no-op."""
        grant = self._grants.get(request_id)
        if grant is None:
            return
        first = grant.num_sealed_tokens // self._block_size
        grant.num_sealed_tokens = max(grant.num_sealed_tokens, min(num_tokens, grant.num_prompt_tokens))
        last = min(grant.num_sealed_tokens // self._block_size, len(grant.hashes))
        for index in range(first, last):
            self._pool.register(grant.reservation.block_ids[index], grant.hashes[index])

    def take(self, request_id: RequestId) -> Grant | None:
        """Hand the blocks of a grant to the caller, who owns them from now on. None: unknown."""
        return self._grants.pop(request_id, None)

    def room_of(self, request_id: RequestId) -> Reservation | None:
        """What was granted to the request and not taken over yet."""
        grant = self._grants.get(request_id)
        return grant.reservation if grant is not None else None

    def drop(self, request_id: RequestId, writer_active: bool, keeper: PeerId | None = None) -> None:
        """End a grant. Sealed blocks become reusable; the others are free, or quarantined if a writer is active."""
        grant = self._grants.pop(request_id, None)
        if grant is None:
            return
        self._pool.release([*grant.copy_block_ids, *grant.found.all])
        block_ids = list(grant.reservation.block_ids)
        num_sealed = grant.num_sealed_blocks(self._block_size)
        unsealed = block_ids[num_sealed:]
        if writer_active and unsealed:
            self._pool.quarantine(unsealed)
            earlier = self._quarantines.get(request_id)
            self._quarantines[request_id] = Quarantine((earlier.block_ids if earlier else []) + unsealed, keeper)
        else:
            self._pool.release(unsealed)
        self._pool.release(block_ids[:num_sealed])

    def release(self, request_id: RequestId) -> None:
        """The writer has let go: its quarantined blocks are free. Unknown request: no-op."""
        quarantine = self._quarantines.pop(request_id, None)
        if quarantine is not None:
            self._pool.release_quarantined(quarantine.block_ids)

    def lose_keeper(self, keeper: PeerId) -> bool:
        """A gateway is gone. True if it left rooms behind: they are orphans now."""
        left = [quarantine for quarantine in self._quarantines.values() if quarantine.keeper == keeper]
        for quarantine in left:
            quarantine.keeper = None
        return bool(left)

    @property
    def orphans(self) -> tuple[RequestId, ...]:
        """Requests whose rooms are in quarantine, and whose gateway is gone."""
        return tuple(request_id for request_id, each in self._quarantines.items() if each.keeper is None)
