"""What a cache of a given size would hit, by hand."""

from __future__ import annotations

from relevo.sim.reuse import measure_reuse, offered_fraction, reuse_curve
from relevo.workload.requests import WorkloadRequest


def request(*hash_ids: int) -> WorkloadRequest:
    return WorkloadRequest(
        row=0, num_prompt_tokens=10 * len(hash_ids), num_output_tokens=1, hash_ids=hash_ids, hash_block_size=10
    )


def test_the_oldest_tail_goes_first() -> None:
    """Red when a hit does not make its blocks young again, or a prefix is evicted before its tail."""
    requests = [request(1, 2), request(3), request(1), request(4), request(1), request(3), request(1, 2)]
    reuse = measure_reuse(requests, 10, 30)
    # 1 2 | 3 -> 1 hits; 4 evicts 2; 1 hits; 3 hits; 1 hits and 2 is gone
    assert (reuse.num_blocks, reuse.num_hit_blocks) == (9, 4)
    assert measure_reuse(requests, 10, None).num_hit_blocks == 5


def test_what_is_longer_than_the_cache_hits_nothing() -> None:
    reuse = measure_reuse([request(1, 2), request(1, 2, 3), request(1)], 10, 20)
    assert (reuse.num_too_long, reuse.num_hit_blocks) == (1, 1)


def test_the_curve_is_a_share_of_the_unbounded_cache() -> None:
    most, curve = reuse_curve([request(1), request(2), request(1), request(2)], 10, [10, 20])
    assert most.hit_fraction == 0.5
    assert [share for _, share in curve] == [0.0, 1.0]
    assert reuse_curve([request(1)], 10, [10])[1][0][1] == 0.0  # nothing to hit is no error


def test_what_is_offered_is_counted_in_tokens_of_prompts() -> None:
    """20, 20 and 10 tokens, of which 10 and 10 are not new. Red when a block in the middle counts as a beginning."""
    assert offered_fraction([request(1, 2), request(1, 3), request(1)]) == 20 / 50
    assert offered_fraction([request(1, 2), request(5, 2)]) == 0.0
    assert offered_fraction([]) == 0.0
