"""A receiver's block is made of the sender's, whatever the two sizes: each token once, from where it lies."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from relevo.policy.worker.block_cut import cut_block

SIZES = st.sampled_from((1, 2, 3, 4, 6, 8, 16, 32))


@given(data=st.data(), own_size=SIZES, size=SIZES, num_tokens=st.integers(1, 150))
def test_each_token_comes_from_where_it_lies(data: st.DataObject, own_size: int, size: int, num_tokens: int) -> None:
    """Red when a piece begins or ends at another token, or when tokens are taken that are not computed yet."""
    num_entries = -(-num_tokens // own_size)
    table = data.draw(st.lists(st.integers(0, 999), min_size=num_entries, max_size=num_entries, unique=True))
    lies_at = {(table[token // own_size], token % own_size): token for token in range(num_tokens)}
    found = {}
    for index in range(-(-num_tokens // size)):
        cut = cut_block(table, own_size, size, index, num_tokens, group=2)
        assert cut.group == 2 and all(piece.num_tokens > 0 for piece in cut.pieces)
        for piece in cut.pieces:
            for number in range(piece.num_tokens):
                assert 0 <= piece.place + number < size
                token = index * size + piece.place + number
                assert token not in found
                found[token] = lies_at[piece.block_id, piece.first + number]
    assert found == {token: token for token in range(num_tokens)}
