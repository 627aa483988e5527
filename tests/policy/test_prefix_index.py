"""The index against a plain model of who holds what, under batches that come late, twice, out of order or never."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from relevo.core.ids import BlockHash, RequestId, WorkerId, WorkerRef
from relevo.policy.routing.prefix_index import PrefixIndex
from relevo.policy.worker.block_pool import BlockPool
from relevo.policy.worker.prefix_cache import chain

A, B = WorkerRef(WorkerId("a"), 1), WorkerRef(WorkerId("b"), 1)


def hashes(*tokens: int, salt: bytes = b"") -> list[BlockHash]:
    return chain(tokens, 1, salt)


def index_of(**held: list[BlockHash]) -> PrefixIndex:
    index = PrefixIndex()
    for name, keys in held.items():
        index.restore(WorkerRef(WorkerId(name), 1), 0, keys)
    return index


def test_the_longest_prefix_of_each_worker_is_found() -> None:
    index = index_of(a=hashes(1, 2, 3), b=hashes(1, 2))
    assert index.matches(hashes(1, 2, 3, 4)) == {A: 3, B: 2}
    assert index.matches(hashes(1, 9)) == {A: 1, B: 1}
    assert index.matches(hashes(9)) == {}


def test_a_hole_ends_a_prefix() -> None:
    """Red when blocks behind an evicted one count: a worker cannot use them."""
    index = index_of(a=hashes(1, 2, 3))
    assert index.apply(A, 1, [], [hashes(1, 2)[1]])
    assert index.matches(hashes(1, 2, 3)) == {A: 1}


def test_another_salt_finds_nothing() -> None:
    index = index_of(a=hashes(1, 2, salt=b"one tenant"))
    assert index.matches(hashes(1, 2, salt=b"another")) == {}


def test_expected_blocks_are_found_at_once_and_gone_with_their_request() -> None:
    index = index_of(a=hashes(1))
    index.expect(RequestId("r"), "prefill", B, hashes(1, 2))
    assert index.matches(hashes(1, 2)) == {A: 1, B: 2}
    index.expect(RequestId("r"), "prefill", A, hashes(1, 2))  # chosen anew: the first one failed
    assert index.matches(hashes(1, 2)) == {A: 2}
    index.withdraw(RequestId("r"))
    index.withdraw(RequestId("r"))
    assert index.matches(hashes(1, 2)) == {A: 1}
    assert not index.has_expectations


def test_what_was_computed_stays_when_its_request_ends() -> None:
    index = index_of(a=[])
    index.expect(RequestId("r"), "decode", A, hashes(1, 2))
    assert index.apply(A, 1, hashes(1, 2)[:1], [])
    index.withdraw(RequestId("r"))
    assert index.matches(hashes(1, 2)) == {A: 1}


def test_a_worker_that_is_gone_takes_everything_along() -> None:
    index = index_of(a=hashes(1), b=hashes(1))
    index.expect(RequestId("r"), "decode", A, hashes(1, 2))
    index.forget(A)
    assert index.matches(hashes(1, 2)) == {B: 1}
    index.withdraw(RequestId("r"))
    index.forget(B)
    assert index.num_blocks == 0


def test_nothing_is_believed_across_a_gap_until_a_snapshot() -> None:
    index = index_of(a=hashes(1))
    assert not index.apply(A, 2, hashes(5), [])
    assert index.matches(hashes(5)) == {}
    assert not index.apply(A, 3, hashes(6), [])
    index.restore(A, 3, [*hashes(5), *hashes(6)])
    assert index.matches(hashes(5)) == {A: 1}
    assert index.matches(hashes(1)) == {}
    assert index.apply(A, 2, hashes(7), [])  # late, and contained in the snapshot
    assert index.matches(hashes(7)) == {}
    assert index.apply(A, 4, [], hashes(5))
    assert index.matches(hashes(5)) == {}


def test_the_first_batch_of_an_unknown_worker_asks_for_a_snapshot() -> None:
    assert not PrefixIndex().apply(A, 1, hashes(1), [])


class Feed(RuleBasedStateMachine):
    """Two real pools tell what they do; the way to the index loses, repeats and reorders batches."""

    requests = Bundle("requests")

    def __init__(self) -> None:
        super().__init__()
        self.index = PrefixIndex()
        self.pools = {A: BlockPool(0, 4), B: BlockPool(0, 4)}
        self.sent: dict[WorkerRef, list[tuple[tuple[BlockHash, ...], tuple[BlockHash, ...]]]] = {A: [], B: []}
        self.applied = {A: 0, B: 0}
        self.promised: dict[RequestId, tuple[WorkerRef, list[BlockHash]]] = {}
        for worker in (A, B):
            self.index.restore(worker, 0, ())

    @rule(worker=st.sampled_from([A, B]), tokens=st.lists(st.integers(0, 2), min_size=1, max_size=4))
    def compute(self, worker: WorkerRef, tokens: Sequence[int]) -> None:
        pool, keys = self.pools[worker], hashes(*tokens)
        acquired = pool.acquire(keys, len(keys), 0)
        assert acquired is not None
        block_ids, num_hits = acquired
        for block_id, key in list(zip(block_ids, keys, strict=True))[num_hits:]:
            pool.register(block_id, key)
        pool.release(block_ids)
        self.sent[worker].append(pool.take_cache_changes())

    @rule(worker=st.sampled_from([A, B]), data=st.data())
    def deliver(self, worker: WorkerRef, data: st.DataObject) -> None:
        """Any batch, also an old or a later one; a missing one is answered with a snapshot."""
        if not self.sent[worker]:
            return
        number = data.draw(st.integers(1, len(self.sent[worker])))
        if self.index.apply(worker, number, *self.sent[worker][number - 1]):
            self.applied[worker] = max(self.applied[worker], number)
        else:
            self.index.restore(worker, len(self.sent[worker]), self.pools[worker].cached_hashes)
            self.applied[worker] = len(self.sent[worker])

    @rule(
        target=requests,
        name=st.sampled_from("xyz"),
        worker=st.sampled_from([A, B]),
        tokens=st.lists(st.integers(0, 2), min_size=1, max_size=4),
    )
    def promise(self, name: str, worker: WorkerRef, tokens: Sequence[int]) -> RequestId:
        self.index.expect(RequestId(name), "prefill", worker, hashes(*tokens))
        self.promised[RequestId(name)] = (worker, hashes(*tokens))
        return RequestId(name)

    @rule(request=requests)
    def end(self, request: RequestId) -> None:
        self.index.withdraw(request)
        self.promised.pop(request, None)

    def held(self, worker: WorkerRef) -> set[BlockHash]:
        """The model: batches up to the last one that was applied, one after the other."""
        known: set[BlockHash] = set()
        for stored, evicted in self.sent[worker][: self.applied[worker]]:
            known = (known | set(stored)) - set(evicted)
        return known

    @invariant()
    def equals_the_model(self) -> None:
        believed = {worker: self.held(worker) for worker in (A, B)}
        for worker, keys in believed.items():
            assert self.index.told_by(worker) == keys
        for worker, promised in self.promised.values():
            believed[worker] |= set(promised)
        assert self.index.num_blocks == len(believed[A] | believed[B])
        for first in range(3):
            for second in range(3):
                keys = hashes(first, second)
                expected = {}
                for worker in (A, B):
                    count = next((n for n, key in enumerate(keys) if key not in believed[worker]), len(keys))
                    if count:
                        expected[worker] = count
                assert self.index.matches(keys) == expected

    def teardown(self) -> None:
        for request in list(self.promised):
            self.index.withdraw(request)
        for worker in (A, B):
            self.index.forget(worker)
        assert self.index.num_blocks == 0


TestFeed = Feed.TestCase
TestFeed.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
