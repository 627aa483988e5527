"""Prompts without tokens share blocks exactly where prompts with the same content would."""

from __future__ import annotations

from random import Random

import pytest

from relevo.policy.worker.content import TOKENS
from relevo.policy.worker.prefix_cache import chain
from relevo.sim.prompts import VIRTUAL, Texts, VirtualTokens


@pytest.mark.parametrize("block_size", [4, 8, 16, 6])
def test_blocks_are_equal_where_the_tokens_behind_them_are(block_size: int) -> None:
    """Red when a block ignores what came before it, or takes what lies beyond the ids for shared. Ids of 8 tokens."""
    rng, texts = Random(block_size), Texts()
    written: dict[bytes, bytes] = {}
    for number in range(60):
        ids = [rng.randrange(2) for _ in range(rng.randrange(6))]
        num_tokens = 8 * len(ids) + rng.randrange(20)
        real = [100 * content_id + i for content_id in ids for i in range(8)]
        real += [10_000 + 100 * number + i for i in range(num_tokens - len(real))]
        virtual = VIRTUAL.hashes(VirtualTokens(texts.text(ids, 8), num_tokens), block_size, b"")
        hashes = chain(real, block_size, b"")
        assert len(virtual) == len(hashes) == num_tokens // block_size
        for name, expected in zip(virtual, hashes, strict=True):
            assert written.setdefault(name, expected) == expected
    if block_size % 8 == 0 or 8 % block_size == 0:  # else a block that ends inside an id is taken for another one
        assert len(set(written.values())) == len(written)


def test_an_answer_goes_on_where_its_prompt_ended_and_salts_part_texts() -> None:
    texts = Texts()
    prompt = VirtualTokens(texts.text([1, 2, 3], 8), 20)
    tokens = VIRTUAL.joined(prompt, [7, 7])
    tokens.append(7)
    assert (len(tokens), len(prompt), list(tokens[20:])) == (23, 20, [20, 21, 22])
    grown = VIRTUAL.next_hash(VIRTUAL.hashes(prompt, 8, b""), tokens, 8, b"")
    longer = VIRTUAL.hashes(VirtualTokens(texts.text([1, 2, 3], 8), 24), 8, b"")
    assert grown == longer[2], "the next turn of a session does not find what the answer left behind"
    salted = VIRTUAL.hashes(VirtualTokens(texts.text([1, 2, 3], 8, b"other"), 24), 8, b"")
    assert not set(salted) & set(longer)
    assert TOKENS.joined((1, 2), [3]) == [1, 2, 3]
