"""What the sender of a handoff writes: each block of the prompt once, and the receiver's hits never."""

from __future__ import annotations

from itertools import product

import pytest

from relevo.core.handoff import KVPath, Link
from relevo.core.kv import Reservation
from relevo.engine.outgoing import RemotePrefill
from relevo.policy.worker.scheduler import ComputedPrefix

BLOCK_SIZE = 2


def written_blocks(num_prompt: int, num_hits: int, ends: list[int]) -> list[list[int]]:
    """Indices of the blocks that go out after each chunk; chunks end at `ends`."""
    num_blocks = -(-num_prompt // BLOCK_SIZE)
    block_ids = tuple(range(100, 100 + num_blocks))
    reservation = Reservation(
        request_id="r",
        worker_id="D",
        epoch=1,
        block_ids=block_ids,
        generations=(0,) * num_blocks,
        num_hit_tokens=num_hits,
    )
    entry, written = RemotePrefill(reservation, KVPath("fake", "D", Link.BOX)), []
    for end in ends:
        is_last = end == num_prompt
        num_tokens = end if is_last else end // BLOCK_SIZE * BLOCK_SIZE
        local = tuple(range(-(-num_tokens // BLOCK_SIZE)))
        runs = entry.advance(ComputedPrefix("r", reservation, num_tokens, local, is_last), BLOCK_SIZE)
        assert all(list(ids) == list(range(first, first + len(ids))) for first, ids in runs)
        written.append([index for _, ids in runs for index in ids])
    return written


@pytest.mark.parametrize("num_prompt", [1, 4, 5, 8])
def test_each_block_is_written_once_and_hits_never(num_prompt: int) -> None:
    """Red when a block goes out again after it may have been sealed: the receiver may have given it away."""
    for num_hits in range(0, num_prompt, BLOCK_SIZE):
        between = range(num_hits + 1, num_prompt)
        for chosen in product([False, True], repeat=len(between)):
            ends = [end for end, is_end in zip(between, chosen, strict=True) if is_end] + [num_prompt]
            written = written_blocks(num_prompt, num_hits, ends)
            order = [index for blocks in written for index in blocks]
            assert order == list(range(num_hits // BLOCK_SIZE, -(-num_prompt // BLOCK_SIZE))), (num_hits, ends)
