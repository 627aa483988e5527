"""What a worker tells of its cache, and a gateway that reads too slowly for it."""

from __future__ import annotations

from recorded_links import RecordedLinks

from relevo.core.ids import PeerId, WorkerId, WorkerRef
from relevo.engine.cache_feed import MAX_UNREAD_BYTES, CacheFeed
from relevo.policy.routing.prefix_index import PrefixIndex
from relevo.policy.worker.block_pool import BlockPool
from relevo.policy.worker.prefix_cache import chain
from relevo.wire import messages as wire

QUICK, SLOW = PeerId(0), PeerId(1)
WORKER = WorkerRef(WorkerId("w"), 1)


def compute(pool: BlockPool, *tokens: int) -> None:
    keys = chain(tokens, 1, b"")
    acquired = pool.acquire(keys, len(keys), 0)
    assert acquired is not None
    block_ids, num_hits = acquired
    for block_id, key in list(zip(block_ids, keys, strict=True))[num_hits:]:
        pool.register(block_id, key)
    pool.release(block_ids)


def index_after(messages: list[wire.ToGateway], index: PrefixIndex) -> bool:
    """False: a gap was noticed."""
    whole = True
    for message in messages:
        if isinstance(message, wire.CacheSnapshot):
            index.restore(WORKER, message.sequence, message.hashes)
            whole = True
        else:
            whole = index.apply(WORKER, message.sequence, message.stored, message.evicted)
    return whole


def test_a_follower_gets_a_snapshot_and_one_batch_per_step() -> None:
    pool, links = BlockPool(0, 4), RecordedLinks()
    feed = CacheFeed(pool, links)
    compute(pool, 1, 2)
    feed.follow(QUICK)
    compute(pool, 3)
    compute(pool, 4, 5)  # evicts
    feed.publish()
    feed.publish()
    snapshot, batch = links.told_to(QUICK)
    assert set(snapshot.hashes) == set(chain((1, 2), 1, b""))
    assert batch.sequence == snapshot.sequence + 1
    index = PrefixIndex()
    assert index_after(links.told_to(QUICK), index)
    assert index.told_by(WORKER) == set(pool.cached_hashes)
    feed.unfollow(QUICK)
    compute(pool, 6)
    feed.publish()
    assert len(links.told_to(QUICK)) == 2


def test_a_slow_reader_is_left_out_sees_the_gap_and_is_whole_after_a_snapshot() -> None:
    """Red when events pile up for a gateway that does not read, or when it goes on without what it missed."""
    pool, links = BlockPool(0, 8), RecordedLinks()
    feed, index = CacheFeed(pool, links), PrefixIndex()
    feed.follow(SLOW)
    feed.follow(QUICK)
    links.unread[SLOW] = MAX_UNREAD_BYTES + 1
    for token in range(100):
        compute(pool, token)
        feed.publish()
    assert len(links.told_to(SLOW)) == 1
    assert len(links.told_to(QUICK)) == 101
    links.unread[SLOW] = 0
    compute(pool, 1000)
    feed.publish()
    assert not index_after(links.told_to(SLOW), index)
    feed.follow(SLOW)
    assert index_after(links.told_to(SLOW)[-1:], index)
    assert index.told_by(WORKER) == set(pool.cached_hashes)


def test_what_no_gateway_follows_is_not_kept() -> None:
    pool = BlockPool(0, 4)
    feed = CacheFeed(pool, RecordedLinks())
    for token in range(50):
        compute(pool, token)
        feed.publish()
    assert pool.take_cache_changes() == ((), ())
