"""What a prefix cache of a given size would hit in a workload: the real block pool, one request after the other.

No time passes: a request holds its blocks only while it is looked up. So this is the reuse that a workload offers to
one worker which sees all of it, the bound for what routing and scheduling can realise.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile

from relevo.core.ids import BlockHash
from relevo.policy.worker.block_pool import BlockPool
from relevo.workload.requests import WorkloadRequest


@dataclass(frozen=True, slots=True)
class Reuse:
    """Of one cache. Blocks are those of the trace's hash ids, the last one of a prompt included if it has an id."""

    capacity_tokens: int | None  # None: unbounded
    num_blocks: int  # looked up
    num_hit_blocks: int
    num_too_long: int  # requests that do not fit into the cache at all, and hit nothing

    @property
    def hit_fraction(self) -> float:
        return self.num_hit_blocks / self.num_blocks if self.num_blocks else 0.0


def measure_reuse(requests: Sequence[WorkloadRequest], block_size: int, capacity_tokens: int | None) -> Reuse:
    """Look every request up, in order, in a least-recently-used cache of `capacity_tokens`."""
    num_blocks = sum(len(request.hash_ids) for request in requests)
    hits = list(hit_blocks(requests, block_size, capacity_tokens))
    found = [number for number in hits if number is not None]
    return Reuse(capacity_tokens, num_blocks, sum(found), len(hits) - len(found))


def hit_blocks(
    requests: Sequence[WorkloadRequest], block_size: int, capacity_tokens: int | None
) -> Iterator[int | None]:
    """Blocks that each request finds; None: it does not fit into the cache at all."""
    num_blocks = sum(len(request.hash_ids) for request in requests)
    pool = BlockPool(0, num_blocks if capacity_tokens is None else capacity_tokens // block_size)
    for request in requests:
        hashes = block_hashes(request.hash_ids)
        acquired = pool.acquire(hashes, len(hashes), 0)
        if acquired is None:
            yield None
            continue
        block_ids, hits = acquired
        yield hits
        for block_id, key in zip(block_ids[hits:], hashes[hits:], strict=True):
            pool.register(block_id, key)
        pool.release(block_ids)


def reuse_curve(
    requests: Sequence[WorkloadRequest], block_size: int, capacities_tokens: Iterable[int]
) -> tuple[Reuse, list[tuple[Reuse, float]]]:
    """(the reuse of an unbounded cache, each bounded one with its share of that)."""
    most = measure_reuse(requests, block_size, None)
    bounded = [measure_reuse(requests, block_size, capacity) for capacity in capacities_tokens]
    return most, [
        (reuse, reuse.num_hit_blocks / most.num_hit_blocks if most.num_hit_blocks else 0.0) for reuse in bounded
    ]


def block_hashes(hash_ids: Iterable[int]) -> list[BlockHash]:
    """Hash ids as the names of blocks. An id stands for its block and all before it, as in every trace that has ids."""
    return [hash_id.to_bytes(16, "little", signed=True) for hash_id in hash_ids]


def offered_fraction(requests: Sequence[WorkloadRequest]) -> float:
    """Prompt tokens that some earlier prompt begins with, of all: what an unbounded cache that all share would hit."""
    known: set[int] = set()
    num_hit_tokens = num_tokens = 0
    for request in requests:
        num_tokens += request.num_prompt_tokens
        num_hits = sum(1 for _ in takewhile(known.__contains__, request.hash_ids))
        num_hit_tokens += min(num_hits * request.hash_block_size, request.num_prompt_tokens)
        known.update(request.hash_ids)
    return num_hit_tokens / num_tokens if num_tokens else 0.0
