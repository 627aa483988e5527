"""What the sender of a handoff writes: each block of the prompt once, and the receiver's hits never."""

from __future__ import annotations

from itertools import product

import pytest

from relevo.core.handoff import KVPath, Link
from relevo.core.kv import Reservation
from relevo.policy.worker.remote_prefill import RemotePrefill

BLOCK_SIZE = 2


def written_blocks(num_prompt: int, num_hits: int, ends: list[int]) -> list[list[int]]:
    """Indices of the blocks that go out after each chunk; chunks end at `ends`."""
    num_blocks = -(-num_prompt // BLOCK_SIZE)
    block_ids = tuple(range(100, 100 + num_blocks))
    reservation = Reservation(
        request_id="r",
        worker_id="D",
        epoch=1,
        block_size=BLOCK_SIZE,
        block_ids=block_ids,
        generations=(0,) * num_blocks,
        num_hit_tokens=num_hits,
    )
    remote = RemotePrefill(
        reservation=reservation,
        path=KVPath("fake", "D", Link.BOX),
        num_prompt_tokens=num_prompt,
        num_found_tokens=0,
        block_size=BLOCK_SIZE,
    )
    local, written = list(range(num_blocks)), []
    for end in ends:
        prefix = remote.advance(end, local)
        if prefix is None:
            continue
        first = prefix.first_index
        assert list(prefix.blocks) == local[first : first + len(prefix.blocks)]
        assert prefix.num_tokens == (end if prefix.is_last else (first + len(prefix.blocks)) * BLOCK_SIZE)
        written.append(list(prefix.blocks))
    assert remote.is_computed and not remote.is_sealed
    assert remote.seal(num_prompt) == num_prompt - num_hits and remote.is_sealed
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
