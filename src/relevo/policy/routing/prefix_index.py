"""What is believed to be cached on which worker: a map from block hash to workers, fed by their cache events.

A block's hash covers everything before it (`policy.worker.prefix_cache`), so a flat map is a radix tree whose edges are
one block long: walking a prompt's hashes from the first one finds the longest prefix that each worker holds.

Two kinds of knowledge, kept apart:

- **told**: what a worker's events say it stored and evicted. Batches are numbered per worker. A batch out of order is
  not applied; after a gap nothing is believed to be new until a snapshot says where things stand.
- **expected**: what a request that was sent somewhere will have computed there. Inserted when the choice is made, so
  that the next request of the same prefix sees it at once, and withdrawn when the request is over: by then the events
  have told what was really computed, and what was not computed is gone without a trace.

Memory is bounded by the workers' pools and the requests in flight. Does not know tokens, load or connections.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from relevo.core.ids import BlockHash, RequestId, WorkerRef
from relevo.core.timeline import HitsLost
from relevo.policy.routing.lost_blocks import LostBlocks


@dataclass(slots=True)
class _Told:
    """One worker's account."""

    hashes: set[BlockHash] = field(default_factory=set)
    sequence: int | None = None  # of the last batch applied; None: a snapshot is needed first


@dataclass(frozen=True, slots=True)
class _Expectation:
    worker: WorkerRef
    hashes: tuple[BlockHash, ...]


class PrefixIndex:
    def __init__(self) -> None:
        self._told: dict[WorkerRef, _Told] = {}
        self._holders: dict[BlockHash, dict[WorkerRef, int]] = {}  # number of reasons to believe it
        self._expected: dict[RequestId, dict[str, _Expectation]] = {}
        self.lost = LostBlocks()  # what was told and is not any more

    # ---- what workers tell -------------------------------------------------------------------------------------------

    def apply(
        self, worker: WorkerRef, sequence: int, stored: Iterable[BlockHash], evicted: Iterable[BlockHash]
    ) -> bool:
        """Take in one batch. False: batches are missing, ask for a snapshot (nothing was changed).

        A batch that is known already changes nothing and is no reason to ask.
        """
        told = self._told.setdefault(worker, _Told())
        if told.sequence is None or sequence > told.sequence + 1:
            told.sequence = None
            return False
        if sequence == told.sequence + 1:
            told.sequence = sequence
            self._store(worker, told, stored)
            self._evict(worker, told, evicted, HitsLost.EVICTED)
        return True

    def restore(self, worker: WorkerRef, sequence: int, hashes: Iterable[BlockHash]) -> None:
        """A snapshot: `hashes` are all that the worker holds after batch `sequence`. An older one changes nothing."""
        told = self._told.setdefault(worker, _Told())
        if told.sequence is not None and sequence < told.sequence:
            return
        now = set(hashes)
        self._evict(worker, told, told.hashes - now, HitsLost.EVICTED)
        self._store(worker, told, now)
        told.sequence = sequence

    def forget(self, worker: WorkerRef) -> None:
        """The worker is gone, with its cache and with what was expected there."""
        told = self._told.pop(worker, None)
        if told is not None:
            self._evict(worker, told, tuple(told.hashes), HitsLost.WORKER_LOST)
        for roles in self._expected.values():
            for role in [role for role, expectation in roles.items() if expectation.worker == worker]:
                self._drop(roles.pop(role))

    def _store(self, worker: WorkerRef, told: _Told, hashes: Iterable[BlockHash]) -> None:
        for key in hashes:
            if key not in told.hashes:
                told.hashes.add(key)
                self.lost.found(key)
                self._add(key, worker)

    def _evict(self, worker: WorkerRef, told: _Told, hashes: Iterable[BlockHash], reason: HitsLost) -> None:
        known = [key for key in hashes if key in told.hashes]
        for key in known:
            told.hashes.discard(key)
            self._remove(key, worker)
        self.lost.lose(known, reason)

    # ---- what requests promise ---------------------------------------------------------------------------------------

    def expect(self, request_id: RequestId, role: str, worker: WorkerRef, hashes: Sequence[BlockHash]) -> None:
        """The request will have these blocks on `worker`; replaces what it promised in that role elsewhere."""
        roles = self._expected.setdefault(request_id, {})
        former = roles.pop(role, None)
        if former is not None:
            self._drop(former)
        roles[role] = _Expectation(worker, tuple(hashes))
        for key in hashes:
            self._add(key, worker)

    def expected_by(self, request_id: RequestId) -> dict[str, tuple[WorkerRef, tuple[BlockHash, ...]]]:
        """What the request promises, by role: where, and which blocks."""
        return {role: (each.worker, each.hashes) for role, each in self._expected.get(request_id, {}).items()}

    def withdraw(self, request_id: RequestId) -> None:
        """The request is over, however it ended. Idempotent; what the worker told stays."""
        for expectation in self._expected.pop(request_id, {}).values():
            self._drop(expectation)

    def _drop(self, expectation: _Expectation) -> None:
        for key in expectation.hashes:
            self._remove(key, expectation.worker)

    # ---- what can be asked -------------------------------------------------------------------------------------------

    def matches(self, hashes: Sequence[BlockHash]) -> dict[WorkerRef, int]:
        """Number of leading blocks of `hashes` per worker that has at least one of them."""
        found: dict[WorkerRef, int] = {}
        alive: set[WorkerRef] | None = None
        for count, key in enumerate(hashes, start=1):
            holders = self._holders.get(key)
            if not holders:
                break
            alive = set(holders) if alive is None else alive & holders.keys()
            if not alive:
                break
            found.update(dict.fromkeys(alive, count))
        return found

    @property
    def num_blocks(self) -> int:
        """Different blocks known anywhere."""
        return len(self._holders)

    @property
    def has_expectations(self) -> bool:
        return bool(self._expected)

    def told_by(self, worker: WorkerRef) -> frozenset[BlockHash]:
        """What the worker said it holds, as far as its account has no gap."""
        told = self._told.get(worker)
        return frozenset(told.hashes) if told is not None else frozenset()

    def _add(self, key: BlockHash, worker: WorkerRef) -> None:
        holders = self._holders.setdefault(key, {})
        holders[worker] = holders.get(worker, 0) + 1

    def _remove(self, key: BlockHash, worker: WorkerRef) -> None:
        holders = self._holders[key]
        holders[worker] -= 1
        if not holders[worker]:
            del holders[worker]
            if not holders:
                del self._holders[key]
