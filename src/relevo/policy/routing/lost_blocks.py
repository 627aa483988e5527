"""What was cached and is not any more: which blocks were evicted lately, and which went with a worker.

Tells why a prompt that had been computed is computed again. Bounded: what is older is forgotten. Beside
`policy.routing.prefix_index`, which says what is cached now; no choice depends on this.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from relevo.core.ids import BlockHash
from relevo.core.timeline import HitsLost

MAX_BLOCKS = 32_768  # arbitrary: some MB; half of them at least are remembered


@dataclass(frozen=True, slots=True)
class LostHits:
    num_tokens: int = 0
    reason: HitsLost | None = None  # of most of them


NOTHING_LOST = LostHits()


@dataclass(slots=True)
class LostBlocks:
    max_blocks: int = MAX_BLOCKS
    _young: dict[BlockHash, HitsLost] = field(default_factory=dict)
    _old: dict[BlockHash, HitsLost] = field(default_factory=dict)  # forgotten when the young are as many

    def lose(self, hashes: Iterable[BlockHash], reason: HitsLost) -> None:
        most = self.max_blocks // 2
        for key in hashes:
            self._young[key] = reason
            if len(self._young) >= most:
                self._young, self._old = {}, self._young

    def found(self, key: BlockHash) -> None:
        """It is cached again."""
        if self._young or self._old:
            self._young.pop(key, None)
            self._old.pop(key, None)

    def of(self, hashes: Sequence[BlockHash], num_here: int, num_anywhere: int, block_size: int) -> LostHits:
        """Of a prompt with these blocks, `num_here` of which are found where it goes and `num_anywhere` where most
        are: what would have been found."""
        num_moved = max(0, num_anywhere - num_here)
        counts = {HitsLost.MOVED: num_moved, HitsLost.EVICTED: 0, HitsLost.WORKER_LOST: 0}
        for index in range(max(num_here, num_anywhere), len(hashes)):
            reason = self._young.get(hashes[index]) or self._old.get(hashes[index])
            if reason is None:
                break
            counts[reason] += 1
        num_blocks = sum(counts.values())
        if not num_blocks:
            return NOTHING_LOST
        return LostHits(num_blocks * block_size, max(counts, key=lambda reason: counts[reason]))

    def __len__(self) -> int:
        return len(self._young) + len(self._old)
