"""The arena: one memory seen from several mappings, refused when it is not what it should be."""

from __future__ import annotations

import mmap
import os
from contextlib import closing
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from transport_rigs import make_layout

from relevo.core.errors import LayoutMismatch
from relevo.core.kv import KVGroup, KVLayout
from relevo.kv.arena import Arena
from relevo.kv.arena_file import NO_GENERATION
from relevo.kv.layout_check import check_layout, layout_digest

LAYOUT = make_layout(64)


def test_two_mappings_are_one_memory() -> None:
    with closing(Arena.create(LAYOUT, 8, shared=True)) as mine, closing(Arena.attach(mine.fd, LAYOUT, 8)) as theirs:
        assert mine.identity == theirs.identity
        assert (theirs.generations == NO_GENERATION).all()
        mine.block(7)[:] = bytes(range(64))
        theirs.generations[3] = 5
        theirs.epochs[3] = 6
        assert bytes(theirs.block(7)) == bytes(range(64))
        assert (mine.generations[3], mine.epochs[3]) == (5, 6)
        assert not any(mine.block(6))
        theirs.close()
        os.fstat(mine.fd)  # still the creator's


@pytest.mark.parametrize("shared", [True, False])
def test_memory_is_never_taken_for_another(shared: bool) -> None:
    """Red when an identity follows from what is used again: an address, the number of a process (two containers of one
    machine have the same of both), a file's device and inode. Workers would compute into blocks that are not there."""
    seen = set()
    for _ in range(20):
        with closing(Arena.create(LAYOUT, 8, shared=shared)) as arena:
            seen.add(arena.identity)
    assert len(seen) == 20


def test_blocks_are_writable_page_aligned_and_whole() -> None:
    with closing(Arena.create(LAYOUT, 8, shared=False)) as arena:
        assert arena.buffer.nbytes == 8 * LAYOUT.bytes_per_block
        assert not arena.buffer.readonly
        words = np.frombuffer(arena.buffer, dtype=np.uint64)
        assert words.ctypes.data % mmap.PAGESIZE == 0
        arena.block(1)[:] = b"\x01" * 64
        arena.copy_block(1, 4)
        assert [int(row.any()) for row in words.reshape(8, -1)] == [0, 1, 0, 0, 1, 0, 0, 0]
        del words


@given(st.lists(st.integers(0, 7), max_size=12))
def test_spans_are_the_blocks_in_order(block_ids: list[int]) -> None:
    with closing(Arena.create(LAYOUT, 8, shared=False)) as arena:
        for block_id in range(8):
            arena.block(block_id)[:] = bytes([block_id]) * 64
        spans = arena.spans(block_ids)
        assert b"".join(spans) == b"".join(bytes([block_id]) * 64 for block_id in block_ids)
        breaks = sum(after != before + 1 for before, after in pairwise(block_ids))
        assert len(spans) == (breaks + 1 if block_ids else 0)
        for span in spans:
            span.release()


@pytest.mark.parametrize("block_id", [-1, 8])
def test_there_is_no_block_outside(block_id: int) -> None:
    """Red if a negative id counts from the end."""
    with closing(Arena.create(LAYOUT, 8, shared=False)) as arena:
        with pytest.raises(IndexError):
            arena.block(block_id)
        with pytest.raises(IndexError):
            arena.spans([0, block_id])


def test_another_size_or_layout_is_refused() -> None:
    with closing(Arena.create(LAYOUT, 8, shared=True)) as arena:
        with pytest.raises(LayoutMismatch, match="bytes"):
            Arena.attach(arena.fd, LAYOUT, 9)
        with pytest.raises(LayoutMismatch, match="same size"):
            Arena.attach(arena.fd, make_layout(64, block_size=2), 8)


def test_close_is_idempotent_and_survives_views() -> None:
    arena = Arena.create(LAYOUT, 8, shared=True)
    fd, view = arena.fd, np.frombuffer(arena.block(0), dtype=np.uint8)
    arena.close()
    arena.close()
    assert view[0] == 0
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_every_field_of_a_layout_counts() -> None:
    group = KVGroup.full(range(2), 1, 8)
    layout = KVLayout("m", "float32", 16, (group,))
    others = [
        KVLayout("n", "float32", 16, (group,)),
        KVLayout("m", "float16", 16, (group,)),
        KVLayout("m", "float32", 8, (group,)),
        KVLayout("m", "float32", 16, (KVGroup.full([0], 2, 8),)),
        KVLayout("m", "float32", 16, (group,), tensor_parallel_size=2),
    ]
    assert layout_digest(layout) == layout_digest(KVLayout("m", "float32", 16, (KVGroup.full(range(2), 1, 8),)))
    check_layout(layout, layout, "A peer")
    for other in others:
        assert layout_digest(other) != layout_digest(layout)
        if other.block_size != layout.block_size:  # a peer's blocks are cut; in memory that is shared the digest counts
            check_layout(layout, other, "A peer")
            continue
        with pytest.raises(LayoutMismatch, match=r"^A peer is refused: .*\.$"):
            check_layout(layout, other, "A peer")
