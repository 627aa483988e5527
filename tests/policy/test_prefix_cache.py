"""Block hashes: equal exactly when the whole prefix and the salt are equal."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from relevo.policy.worker.prefix_cache import HASH_BYTES, ROOT_HASH, block_hash, chain

tokens = st.lists(st.integers(0, 3), max_size=12)
salts = st.sampled_from([b"", b"a", b"ab"])


@given(first=tokens, second=tokens, first_salt=salts, second_salt=salts, block_size=st.integers(1, 4))
def test_hashes_agree_exactly_on_the_common_blocks(first, second, first_salt, second_salt, block_size):
    left, right = chain(first, block_size, first_salt), chain(second, block_size, second_salt)
    assert len(left) == len(first) // block_size
    for index, (a, b) in enumerate(zip(left, right, strict=False)):
        end = (index + 1) * block_size
        assert (a == b) == (first[:end] == second[:end] and first_salt == second_salt)


def test_a_chain_is_its_blocks_one_by_one():
    """Red if the scheduler, which hashes output blocks one at a time, would miss what a later prompt asks for."""
    prompt = [5, 6, 7, 8, 9]
    first = block_hash(ROOT_HASH, prompt[0:2], b"s")
    assert chain(prompt, 2, b"s") == [first, block_hash(first, prompt[2:4], b"s")]
    assert len(first) == HASH_BYTES


def test_salt_and_parent_do_not_run_into_each_other():
    assert block_hash(b"ab", [1], b"c") != block_hash(b"a", [1], b"bc")


def test_the_hash_is_the_same_on_every_worker_and_run():
    """Red if the hash function changes: workers of two versions would disagree about every block."""
    assert block_hash(ROOT_HASH, [1, 2, 0xFFFFFFFF], b"tenant").hex() == "05e0c052075729e7cb13b02ca2713e9e"
