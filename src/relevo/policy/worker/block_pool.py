"""Owns the KV blocks of one worker: which are free, held (and how often), quarantined, and each block's generation.

    free ──allocate──► held ──release──► reusable (content known) ──share──► held
      ▲                 │ │                 └──evict, when free runs out──► held
      └─────release─────┘ └──quarantine──► quarantined ──release_quarantined──► free

Always: free + reusable + held + quarantined == total. Knows nothing of requests or token contents.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from relevo.core.ids import BlockHash, BlockId
from relevo.policy.worker.prefix_cache import ContentKey, PrefixCache


class BlockPool:
    """Block ids are [first_block_id, first_block_id + num_blocks): unique over all workers of a box."""

    def __init__(self, first_block_id: BlockId, num_blocks: int) -> None:
        self.first_block_id = first_block_id
        self.num_blocks = num_blocks
        self.num_held = 0
        self._free = list(range(first_block_id + num_blocks - 1, first_block_id - 1, -1))  # a stack
        self._num_refs = [0] * num_blocks
        self._generations = array("q", bytes(8 * num_blocks))  # no objects: they would lie among short-lived ones
        self._quarantined: set[BlockId] = set()
        self._cache = PrefixCache()

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_reusable(self) -> int:
        return self._cache.num_reusable

    @property
    def num_quarantined(self) -> int:
        return len(self._quarantined)

    @property
    def num_available(self) -> int:
        """Blocks that `allocate` can give: free ones, then reusable ones."""
        return len(self._free) + self._cache.num_reusable

    @property
    def num_evicted(self) -> int:
        """Since the start."""
        return self._cache.num_evicted

    def num_refs(self, block_id: BlockId) -> int:
        return self._num_refs[self._index(block_id)]

    def generation(self, block_id: BlockId) -> int:
        """Grows each time the block stops being held; a right to write names one generation."""
        return self._generations[self._index(block_id)]

    def match(self, hashes: Sequence[BlockHash]) -> list[BlockId]:
        """Blocks with the longest known prefix of `hashes`; valid until the next allocate unless shared."""
        return self._cache.match(hashes)

    def find(self, key: ContentKey) -> BlockId | None:
        """The block with this content; as valid as what `match` returns."""
        return self._cache.find(key)

    @property
    def cached_hashes(self) -> tuple[BlockHash, ...]:
        """The content that `match` can find now, in no order."""
        return self._cache.hashes

    def take_cache_changes(self) -> tuple[tuple[BlockHash, ...], tuple[BlockHash, ...]]:
        """(stored, evicted) since the last call, each content once."""
        return self._cache.take_changes()

    def allocate(self, num_blocks: int) -> list[BlockId] | None:
        """`num_blocks` blocks with unknown content, held once; None if they do not fit (nothing changes then)."""
        if num_blocks > self.num_available:
            return None
        block_ids = [self._free.pop() if self._free else self._cache.evict() for _ in range(num_blocks)]
        for block_id in block_ids:
            self._num_refs[self._index(block_id)] = 1
        self.num_held += num_blocks
        return block_ids

    def share(self, block_ids: Sequence[BlockId]) -> None:
        """Hold blocks, from `match` or held already, once more."""
        for block_id in block_ids:
            index = self._index(block_id)
            if self._num_refs[index] == 0:
                self._cache.take(block_id)
                self.num_held += 1
            self._num_refs[index] += 1

    def acquire(self, hashes: Sequence[BlockHash], num_blocks: int, num_spare: int) -> tuple[list[BlockId], int] | None:
        """Hold `num_blocks` blocks that start with the known prefix of `hashes` (at most `num_blocks` long).

        Returns the blocks and how many of them are hits; None if fewer than `num_spare` blocks would stay available.
        """
        hits = self.match(hashes)
        new = self.take(hits, num_blocks - len(hits), num_spare)
        return None if new is None else (hits + new, len(hits))

    def take(self, hits: Sequence[BlockId], num_new: int, num_spare: int) -> list[BlockId] | None:
        """Hold blocks that `match` or `find` has just given and `num_new` new ones, which are returned; None if fewer
        than `num_spare` would stay available."""
        num_parked = sum(1 for block_id in hits if self._num_refs[self._index(block_id)] == 0)
        if num_new + num_parked + num_spare > self.num_available:
            return None
        self.share(hits)
        return self.allocate(num_new)

    def register(self, block_id: BlockId, key: ContentKey) -> bool:
        """The held block now has the content of `key`. False: another block has it already, this one stays unknown."""
        assert self._num_refs[self._index(block_id)] > 0
        return self._cache.register(block_id, key)

    def forget(self, key: ContentKey) -> None:
        """The content cannot be found any more, and its block is free when nothing holds it. Unknown content: no-op."""
        if self._cache.find(key) is not None:
            block_id = self._cache.forget(key)
            if self._num_refs[self._index(block_id)] == 0:
                self._free.append(block_id)

    def release(self, block_ids: Sequence[BlockId]) -> None:
        """Let go once of each block, last first, so that tails are evicted before what they build on."""
        for block_id in reversed(block_ids):
            index = self._index(block_id)
            assert self._num_refs[index] > 0, f"block {block_id} is released but not held"
            self._num_refs[index] -= 1
            if self._num_refs[index] == 0:
                self._leave_held(index)
                if self._cache.knows(block_id):
                    self._cache.park(block_id)
                else:
                    self._free.append(block_id)

    def quarantine(self, block_ids: Sequence[BlockId]) -> None:
        """Let go of blocks, each held once and unknown to the cache, that a writer may still touch."""
        for block_id in block_ids:
            index = self._index(block_id)
            assert self._num_refs[index] == 1 and not self._cache.knows(block_id)
            self._num_refs[index] = 0
            self._leave_held(index)
            self._quarantined.add(block_id)

    def release_quarantined(self, block_ids: Sequence[BlockId]) -> None:
        """No writer touches these any more."""
        for block_id in block_ids:
            self._quarantined.remove(block_id)
            self._free.append(block_id)

    def _leave_held(self, index: int) -> None:
        self.num_held -= 1
        self._generations[index] += 1

    def _index(self, block_id: BlockId) -> int:
        index = block_id - self.first_block_id
        assert 0 <= index < self.num_blocks, f"block {block_id} is not of this pool"
        return index
