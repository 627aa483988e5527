"""The state of a sequence in blocks of the pool, and the snapshots that it leaves behind.

A snapshot is the blocks themselves: once they can be found nothing writes into them, and the sequence goes on in a
copy. Where no room is left for that, the snapshot is forgotten, so that none costs a running sequence its blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from relevo.core.ids import BlockHash, BlockId
from relevo.policy.worker.block_pool import BlockPool


@dataclass(slots=True, eq=False)
class Snapshots:
    """Of one sequence, in one group of states."""

    borders: Sequence[int] = ()  # tokens after which one is kept
    answer_from: int = 0  # tokens; behind them it is kept after every whole block, in place of the one before
    held: BlockHash | None = None  # the end of the tokens whose snapshot the sequence's own blocks are
    of_answer: BlockHash | None = None  # the last one behind `answer_from`


def find_state(pool: BlockPool, group: int, key: BlockHash, num_blocks: int) -> list[BlockId] | None:
    """Whole, or none of it."""
    block_ids: list[BlockId] = []
    for place in range(num_blocks):
        block_id = pool.find((group, key, place))
        if block_id is None:
            return None
        block_ids.append(block_id)
    return block_ids


def keep_state(
    pool: BlockPool,
    group: int,
    block_ids: Sequence[BlockId],
    snapshots: Snapshots,
    num_computed: int,
    block_size: int,
    hashes: Sequence[BlockHash],
) -> None:
    """After a step: the state after `num_computed` tokens can be found if it is one to keep and is not known yet."""
    num_whole, rest = divmod(num_computed, block_size)
    is_of_answer = num_computed > snapshots.answer_from
    if rest or not 0 < num_whole <= len(hashes) or not (is_of_answer or num_computed in snapshots.borders):
        return
    key = hashes[num_whole - 1]
    are_new = [pool.register(block_id, (group, key, place)) for place, block_id in enumerate(block_ids)]
    if not any(are_new):
        return
    snapshots.held = key
    if is_of_answer:
        if snapshots.of_answer is not None:
            _forget_state(pool, group, snapshots.of_answer, len(block_ids))
        snapshots.of_answer = key


def leave_state(
    pool: BlockPool, group: int, block_ids: Sequence[BlockId], snapshots: Snapshots, num_spare: int
) -> list[BlockId]:
    """Before a step writes into a state that is a snapshot: blocks for a copy of it, which then is the sequence's own;
    what it had is the caller's to let go when it is made. Empty: it goes on where it is, and the snapshot is forgotten,
    because fewer than `num_spare` blocks would be left. Requires a snapshot."""
    key, snapshots.held = snapshots.held, None
    assert key is not None, "nothing is kept of the state"
    new = pool.allocate(len(block_ids)) if pool.num_available >= len(block_ids) + num_spare else None
    if new is not None:
        return new
    _forget_state(pool, group, key, len(block_ids))
    if snapshots.of_answer == key:
        snapshots.of_answer = None
    return []


def _forget_state(pool: BlockPool, group: int, key: BlockHash, num_blocks: int) -> None:
    for place in range(num_blocks):
        pool.forget((group, key, place))
