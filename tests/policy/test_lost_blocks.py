"""What is remembered of blocks that were cached once, and how much of it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from relevo.core.ids import BlockHash
from relevo.core.timeline import HitsLost
from relevo.policy.routing.lost_blocks import NOTHING_LOST, LostBlocks, LostHits

KEYS = [BlockHash(bytes([number])) for number in range(24)]
BLOCK = 16


def test_the_run_after_what_is_found_counts_and_ends_at_the_first_unknown_block() -> None:
    lost = LostBlocks()
    lost.lose([KEYS[2], KEYS[3], KEYS[5]], HitsLost.EVICTED)
    assert lost.of(KEYS, 2, 2, BLOCK) == LostHits(2 * BLOCK, HitsLost.EVICTED)
    assert lost.of(KEYS, 0, 0, BLOCK) == NOTHING_LOST


def test_most_of_them_say_why() -> None:
    """Red when the last reason wins, or what another worker has is left out."""
    lost = LostBlocks()
    lost.lose(KEYS[4:6], HitsLost.WORKER_LOST)
    assert lost.of(KEYS, 1, 4, BLOCK) == LostHits(5 * BLOCK, HitsLost.MOVED)
    assert lost.of(KEYS, 3, 4, BLOCK) == LostHits(3 * BLOCK, HitsLost.WORKER_LOST)


def test_what_is_cached_again_is_lost_no_more() -> None:
    lost = LostBlocks()
    lost.lose(KEYS[:2], HitsLost.EVICTED)
    lost.found(KEYS[1])
    assert lost.of(KEYS, 0, 0, BLOCK) == LostHits(BLOCK, HitsLost.EVICTED)


@given(st.lists(st.sampled_from(KEYS), max_size=200))
def test_the_latest_are_remembered_and_no_more_than_may_be(keys: list[BlockHash]) -> None:
    """Red when memory grows with what is evicted, or what was evicted just now is forgotten."""
    lost = LostBlocks(max_blocks=8)
    for key in keys:
        lost.lose([key], HitsLost.EVICTED)
        assert len(lost) <= 8
        assert lost.of([key], 0, 0, BLOCK).num_tokens == BLOCK
