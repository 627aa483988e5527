"""The receiving side of a handoff: the life of granted blocks, and what stays of them after a drop."""

from __future__ import annotations

import pytest
from scheduler_model import make_request

from relevo.core.ids import PeerId
from relevo.policy.worker.block_pool import BlockPool
from relevo.policy.worker.prefix_cache import chain
from relevo.policy.worker.reservations import Reservations

PROMPT = [1, 2, 3, 4, 5]  # blocks of 2: two full ones and a partial one


@pytest.fixture
def pool() -> BlockPool:
    return BlockPool(10, 8)


@pytest.fixture
def room(pool: BlockPool) -> Reservations:
    return Reservations(pool, worker_id="d", epoch=4, block_size=2)


def grant(room: Reservations, request_id: str = "a", n: int = 1, num_spare: int = 0):
    hashes = chain(PROMPT, 2, b"")
    return room.grant(make_request(request_id, PROMPT, n=n), hashes, room._pool.match(hashes[:2]), num_spare, n)


def test_a_grant_names_prompt_blocks_only_and_holds_the_copies(room, pool):
    reservation = grant(room, n=3)
    assert reservation is not None and len(reservation.block_ids) == 3
    assert (reservation.worker_id, reservation.epoch, reservation.num_hit_tokens) == ("d", 4, 0)
    assert pool.num_held == 5
    taken = room.take("a")
    assert taken is not None and len(taken.copy_block_ids) == 2
    assert not set(taken.copy_block_ids) & set(reservation.block_ids)


def test_a_grant_that_would_leave_too_little_changes_nothing(room, pool):
    assert grant(room, num_spare=6) is None
    assert pool.num_free == 8 and "a" not in room


def test_life_of_the_blocks(room):
    grant(room)
    (mine,) = room.grants
    assert mine.num_sealed_blocks(2) == 0
    room.seal("a", 3)
    assert mine.num_sealed_blocks(2) == 1
    room.seal("a", 2)  # a late, smaller seal takes nothing back
    assert mine.num_sealed_blocks(2) == 1 and mine.num_sealed_tokens == 3
    room.seal("a", 5)
    assert mine.num_sealed_blocks(2) == 3  # the partial one, too


def test_sealed_blocks_are_hits_for_the_next_grant_at_once(room, pool):
    """Red if sealing waits for the decode to start: prompts that share a prefix would be computed twice."""
    first = grant(room)
    room.seal("a", 4)
    second = grant(room, "b")
    assert second.num_hit_tokens == 4
    assert second.block_ids[:2] == first.block_ids[:2] and second.block_ids[2] != first.block_ids[2]


def test_a_drop_under_a_writer_quarantines_what_is_not_sealed_until_the_writer_lets_go(room, pool):
    reservation = grant(room, n=2)
    room.seal("a", 2)
    room.drop("a", writer_active=True)
    assert (pool.num_held, pool.num_reusable, pool.num_quarantined) == (0, 1, 2)
    others = pool.allocate(6)
    assert others is not None and not set(others) & set(reservation.block_ids[1:])
    assert pool.allocate(1) is None
    room.release("a")
    room.release("a")
    assert sorted(pool.allocate(2)) == sorted(reservation.block_ids[1:])


def test_a_drop_without_a_writer_frees_at_once(room, pool):
    grant(room)
    room.drop("a", writer_active=False)
    assert pool.num_free == 8 and "a" not in room


def test_a_fully_sealed_prompt_is_never_quarantined(room, pool):
    grant(room)
    room.seal("a", 5)
    room.drop("a", writer_active=True)
    assert (pool.num_quarantined, pool.num_reusable, pool.num_free) == (0, 2, 6)


def test_rights_of_a_dropped_grant_are_stale(room, pool):
    old = grant(room)
    room.drop("a", writer_active=True)
    for block_id, generation in zip(old.block_ids, old.generations, strict=True):
        assert pool.generation(block_id) > generation


def test_a_quarantine_is_told_and_ends_with_its_release(room, pool):
    for request_id in ("a", "b"):
        grant(room, request_id)
        room.drop(request_id, writer_active=request_id == "a", keeper=PeerId(7))
    assert room.orphans == () and not room.lose_keeper(PeerId(8))
    assert room.lose_keeper(PeerId(7)) and room.orphans == ("a",)
    room.release("a")
    assert room.orphans == ()
    assert pool.num_free == 8 and pool.num_quarantined == 0


def test_unknown_requests_are_no_ops(room, pool):
    room.seal("x", 4)
    room.drop("x", writer_active=True)
    room.release("x")
    assert room.take("x") is None and pool.num_free == 8


def test_a_second_grant_of_a_request_adds_to_what_its_writers_may_still_touch(room, pool):
    """Red when blocks of an earlier grant are forgotten in quarantine: they would never come back."""
    for _ in range(2):
        assert grant(room) is not None
        room.drop("a", writer_active=True)
    assert pool.num_quarantined == 6
    room.release("a")
    assert pool.num_quarantined == 0 and pool.num_free == 8
