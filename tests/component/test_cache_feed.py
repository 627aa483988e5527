"""What a worker tells of its cache, and a gateway that reads too slowly for it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

from relevo.core.ids import WorkerId, WorkerRef
from relevo.engine.cache_feed import MAX_UNREAD_BYTES, CacheFeed
from relevo.policy.routing.prefix_index import PrefixIndex
from relevo.policy.worker.block_pool import BlockPool
from relevo.policy.worker.prefix_cache import chain
from relevo.wire import messages as wire
from relevo.wire.server import PeerId

QUICK, SLOW = PeerId(1), PeerId(2)
WORKER = WorkerRef(WorkerId("w"), 1)


@dataclass
class FakeServer:
    unread: dict[PeerId, int] = field(default_factory=dict)
    sent: dict[PeerId, list[Any]] = field(default_factory=dict)

    def num_unsent_bytes(self, peer: PeerId) -> int:
        return self.unread.get(peer, 0)

    def send(self, peer: PeerId, message: Any) -> None:
        self.sent.setdefault(peer, []).append(message)


def compute(pool: BlockPool, *tokens: int) -> None:
    keys = chain(tokens, 1, b"")
    acquired = pool.acquire(keys, len(keys), 0)
    assert acquired is not None
    block_ids, num_hits = acquired
    for block_id, key in list(zip(block_ids, keys, strict=True))[num_hits:]:
        pool.register(block_id, key)
    pool.release(block_ids)


def index_after(messages: list[Any], index: PrefixIndex) -> bool:
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
    pool, server = BlockPool(0, 4), FakeServer()
    feed = CacheFeed(pool, cast(Any, server))
    compute(pool, 1, 2)
    feed.follow(QUICK)
    compute(pool, 3)
    compute(pool, 4, 5)  # evicts
    feed.publish()
    feed.publish()
    snapshot, batch = server.sent[QUICK]
    assert set(snapshot.hashes) == set(chain((1, 2), 1, b""))
    assert batch.sequence == snapshot.sequence + 1
    index = PrefixIndex()
    assert index_after(server.sent[QUICK], index)
    assert index.told_by(WORKER) == set(pool.cached_hashes)
    feed.unfollow(QUICK)
    compute(pool, 6)
    feed.publish()
    assert len(server.sent[QUICK]) == 2


def test_a_slow_reader_is_left_out_sees_the_gap_and_is_whole_after_a_snapshot() -> None:
    """Red when events pile up for a gateway that does not read, or when it goes on without what it missed."""
    pool, server = BlockPool(0, 8), FakeServer()
    feed, index = CacheFeed(pool, cast(Any, server)), PrefixIndex()
    feed.follow(SLOW)
    feed.follow(QUICK)
    server.unread[SLOW] = MAX_UNREAD_BYTES + 1
    for token in range(100):
        compute(pool, token)
        feed.publish()
    assert len(server.sent[SLOW]) == 1
    assert len(server.sent[QUICK]) == 101
    server.unread[SLOW] = 0
    compute(pool, 1000)
    feed.publish()
    assert not index_after(server.sent[SLOW], index)
    feed.follow(SLOW)
    assert index_after(server.sent[SLOW][-1:], index)
    assert index.told_by(WORKER) == set(pool.cached_hashes)


def test_what_nobody_follows_is_not_kept() -> None:
    pool = BlockPool(0, 4)
    feed = CacheFeed(pool, cast(Any, FakeServer()))
    for token in range(50):
        compute(pool, token)
        feed.publish()
    assert pool.take_cache_changes() == ((), ())
