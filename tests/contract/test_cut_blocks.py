"""Blocks of another size hold, for every layout, the same numbers at the places where that size has them."""

from __future__ import annotations

from contextlib import closing

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relevo.core.kv import DTYPE_BYTES, KVGroup, KVLayout
from relevo.kv.arena import Arena
from relevo.kv.cut_blocks import contents, lend
from relevo.policy.worker.block_cut import cut_block

GROUPS = {
    "full": (KVGroup.full([0, 2], 3, 8),),
    "windows": (KVGroup.full([0, 1, 2], 2, 8), KVGroup.window([3], 2, 8, 20)),
    "latents": (KVGroup.latent([0, 1], 24),),
}
NUM_TOKENS = 75


def layout_of(name: str, dtype: str, block_size: int) -> KVLayout:
    return KVLayout("m", dtype, block_size, GROUPS[name])


def packed(layout: KVLayout, group: int, tokens: npt.NDArray[np.uint8], scales: npt.NDArray[np.uint8]) -> list[bytes]:
    """Blocks as the docstring of KVLayout says. tokens [T, runs, bytes of D], scales [T, runs, 4 or 0]."""
    size, blocks = layout.block_size, []
    for start in range(0, len(tokens), size):
        part, of_part = tokens[start : start + size], scales[start : start + size]
        missing = size - len(part)
        part, of_part = (np.pad(each, ((0, missing), (0, 0), (0, 0))) for each in (part, of_part))
        runs = [part[:, run].tobytes() + of_part[:, run].tobytes() for run in range(tokens.shape[1])]
        blocks.append(b"".join(runs).ljust(layout.bytes_per_block, b"\0"))
    return blocks


@settings(max_examples=40, deadline=None)
@given(
    data=st.data(),
    name=st.sampled_from(sorted(GROUPS)),
    dtype=st.sampled_from(("float16", "int8", "float32")),
    own_size=st.sampled_from((8, 16, 32)),
    size=st.sampled_from((4, 16, 24, 32)),
)
def test_every_number_keeps_its_place(data: st.DataObject, name: str, dtype: str, own_size: int, size: int) -> None:
    """Red when a head, a layer, keys or values, or scales land at another's place, or what follows is not empty."""
    if name == "latents" and dtype == "int8":
        dtype = "float16"
    mine, theirs = layout_of(name, dtype, own_size), layout_of(name, dtype, size)
    group = data.draw(st.integers(0, len(mine.groups) - 1))
    shape, rng = mine.groups[group], np.random.default_rng(data.draw(st.integers(0, 99)))
    num_runs = shape.num_layers * shape.num_kv_heads * (2 if shape.value_size else 1)
    tokens = rng.integers(1, 255, (NUM_TOKENS, num_runs, shape.key_size * DTYPE_BYTES[dtype]), np.uint8)
    scales = rng.integers(1, 255, (NUM_TOKENS, num_runs, 4 if dtype == "int8" else 0), np.uint8)
    own = packed(mine, group, tokens, scales)
    with closing(Arena.create(mine, len(own), shared=False)) as arena:
        table = data.draw(st.permutations(range(len(own))))
        for block, content in zip(table, own, strict=True):
            arena.block(block)[:] = content
        wanted = packed(theirs, group, tokens, scales)
        cuts = [cut_block(table, own_size, size, index, NUM_TOKENS, group) for index in range(len(wanted))]
        assert [bytes(block) for block in contents(arena, cuts, size)] == wanted
        lent = lend(arena, cuts, size)
        lent.give_back()
        arena.buffer[:] = bytes(arena.buffer.nbytes)  # which is the next request's by now
        assert b"".join(lent.rest) == b"".join(wanted)
        assert lent.num_bytes == len(wanted) * theirs.bytes_per_block


@pytest.mark.parametrize("own_size", [16, 32])
def test_blocks_of_the_same_size_are_sent_as_they_lie(own_size: int) -> None:
    layout = layout_of("full", "float16", own_size)
    with closing(Arena.create(layout, 4, shared=False)) as arena:
        arena.buffer[:] = np.random.default_rng(1).bytes(arena.buffer.nbytes)
        expected = [bytes(arena.block(block)) for block in (2, 0)]
        assert [bytes(block) for block in contents(arena, (2, 0), own_size)] == expected
        assert b"".join(lend(arena, (2, 0), own_size).rest) == b"".join(expected)
