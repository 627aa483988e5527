"""BlockPool and PrefixCache under random use, against a model of who holds what.

Red if a block is handed out twice, a reference is lost, content is found that is no longer there, or a right to write
(block, generation) is ever issued twice.
"""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from relevo.policy.worker.block_pool import BlockPool


def key(number: int) -> bytes:
    return number.to_bytes(16, "little")


class PoolMachine(RuleBasedStateMachine):
    """Contents are chains 1, 1-2, 1-2-3 …: content number k may only be registered after its parents' chain."""

    @initialize(num_blocks=st.integers(5, 8))
    def start(self, num_blocks):
        self.pool = BlockPool(50, num_blocks)
        self.holders: list[list[int]] = []  # each entry is one holder's blocks
        self.content: dict[int, bytes] = {}  # what the model wrote and registered
        self.quarantined: list[list[int]] = []
        self.rights: set[tuple[int, int]] = set()

    def _issue(self, block_ids):
        for block_id in block_ids:
            right = (block_id, self.pool.generation(block_id))
            assert right not in self.rights
            self.rights.add(right)
            self.content.pop(block_id, None)

    @rule(num_blocks=st.integers(0, 6))
    def allocate(self, num_blocks):
        available = self.pool.num_available
        block_ids = self.pool.allocate(num_blocks)
        assert (block_ids is None) == (num_blocks > available)
        if block_ids:
            busy = {b for held in self.holders + self.quarantined for b in held}
            assert len(set(block_ids)) == num_blocks and not busy & set(block_ids)
            self._issue(block_ids)
            self.holders.append(block_ids)

    @rule(chain=st.integers(0, 2), length=st.integers(1, 4), extra=st.integers(0, 3), spare=st.integers(0, 2))
    def acquire_and_fill(self, chain, length, extra, spare):
        hashes = [key(100 * chain + i) for i in range(length)]
        available = self.pool.num_available
        acquired = self.pool.acquire(hashes, length + extra, spare)
        if acquired is None:
            assert self.pool.num_available == available
            return
        block_ids, num_hits = acquired
        assert len(block_ids) == length + extra and self.pool.num_available >= spare
        for index in range(num_hits):
            assert self.content[block_ids[index]] == hashes[index]
        self._issue(block_ids[num_hits:])
        for index in range(num_hits, length):
            self.pool.register(block_ids[index], hashes[index])
            self.content[block_ids[index]] = hashes[index]
        self.holders.append(block_ids)

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def release(self, data):
        self.pool.release(self.holders.pop(data.draw(st.integers(0, len(self.holders) - 1))))

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def fork(self, data):
        held = data.draw(st.sampled_from(self.holders))
        self.pool.share(held)
        self.holders.append(list(held))

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def quarantine(self, data):
        held = self.holders[data.draw(st.integers(0, len(self.holders) - 1))]
        lone = [b for b in held if self.pool.num_refs(b) == 1 and b not in self.content]
        self.pool.quarantine(lone)
        for block_id in lone:
            held.remove(block_id)
        self.quarantined.append(lone)

    @precondition(lambda self: self.quarantined)
    @rule()
    def writer_lets_go(self):
        self.pool.release_quarantined(self.quarantined.pop())

    @invariant()
    def references_match(self):
        pool = getattr(self, "pool", None)
        if pool is None:
            return
        for block_id in range(50, 50 + pool.num_blocks):
            assert pool.num_refs(block_id) == sum(held.count(block_id) for held in self.holders)
        assert pool.num_free + pool.num_reusable + pool.num_held + pool.num_quarantined == pool.num_blocks
        assert pool.num_held == len({b for held in self.holders for b in held})
        assert pool.num_quarantined == sum(map(len, self.quarantined))


TestPool = PoolMachine.TestCase
TestPool.settings = settings(max_examples=80, stateful_step_count=30, deadline=None)


def filled(pool: BlockPool, keys: list[int]) -> list[int]:
    block_ids = pool.allocate(len(keys))
    assert block_ids is not None
    for block_id, number in zip(block_ids, keys, strict=True):
        pool.register(block_id, key(number))
    return block_ids


def test_tails_are_evicted_before_what_they_build_on_and_old_before_young():
    pool = BlockPool(0, 6)
    old, young = filled(pool, [1, 2, 3]), filled(pool, [11, 12, 13])
    pool.release(old)
    pool.release(young)
    lost = []
    for _ in range(6):
        taken = pool.allocate(1)
        assert taken is not None
        lost += taken
    assert lost == [*reversed(old), *reversed(young)]


def test_a_hit_makes_its_blocks_young():
    pool = BlockPool(0, 4)
    first, second = filled(pool, [1, 2]), filled(pool, [11, 12])
    pool.release(first)
    pool.release(second)
    pool.share(pool.match([key(1), key(2)]))
    pool.release(first)
    assert pool.allocate(2) == list(reversed(second))
    assert pool.match([key(1), key(2)]) == first


def test_the_second_block_with_a_content_stays_unknown():
    pool = BlockPool(0, 2)
    first, second = filled(pool, [1]), filled(pool, [1])
    assert pool.match([key(1)]) == first
    pool.release(second)
    assert (pool.num_free, pool.num_reusable) == (1, 0)
    pool.release(first)
    assert (pool.num_free, pool.num_reusable) == (1, 1)


def test_an_acquire_counts_its_own_parked_hits_as_taken():
    """Red if hits are subtracted from the need but left in the room: the pool would promise a block twice."""
    pool = BlockPool(0, 3)
    pool.release(filled(pool, [1, 2]))
    assert pool.acquire([key(1), key(2)], 4, 0) is None
    assert pool.acquire([key(1), key(2)], 3, 1) is None
    acquired = pool.acquire([key(1), key(2)], 3, 0)
    assert acquired is not None and acquired[1] == 2


def test_a_double_release_is_a_programming_error():
    pool = BlockPool(0, 2)
    held = pool.allocate(1)
    pool.release(held)
    with pytest.raises(AssertionError):
        pool.release(held)


def test_foreign_blocks_are_refused():
    pool = BlockPool(8, 2)
    with pytest.raises(AssertionError):
        pool.share([7])
