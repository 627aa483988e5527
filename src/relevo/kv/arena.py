"""The memory that holds KV blocks, with one (epoch, generation) word pair per block in front of it.

Owns: the mapping, its size and its alignment. Does not know which worker holds which block (policy.worker.block_pool),
nor what the bytes of a block mean (engine). A shared arena lives on a file without a name, so nothing is left behind
when every process that maps it is killed. Pages come into being when they are first touched.

    | head: magic, sizes, digest, identity | generations u64[N] | epochs u64[N] | pad | block 0 | block 1 | ... |
                                                                             ^ multiple of 2 MiB
"""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from relevo.core.errors import LayoutMismatch
from relevo.core.ids import BlockId
from relevo.core.kv import KVLayout
from relevo.kv.arena_file import (
    HEAD,
    HEAD_BYTES,
    IDENTITY_BYTES,
    NO_GENERATION,
    arena_bytes,
    arena_head,
    arena_start,
    create_arena_file,
    data_offset,
)


class Arena:
    """N blocks of `layout.bytes_per_block` bytes. Make one with `create` or `attach`."""

    def __init__(self, layout: KVLayout, num_blocks: int, mapping: mmap.mmap, fd: int, owns_fd: bool) -> None:
        data = data_offset(num_blocks)
        self.layout = layout
        self.num_blocks = num_blocks
        self.bytes_per_block = layout.bytes_per_block
        self.fd = fd  # -1: private to this process
        # the same text for all that map this memory, another one for any other memory
        self.identity = mapping[HEAD.size : HEAD.size + IDENTITY_BYTES].hex()
        self._mapping = mapping
        self._owns_fd = owns_fd
        self.buffer = memoryview(mapping)[data : data + num_blocks * self.bytes_per_block]
        words = np.frombuffer(mapping, dtype=np.uint64, count=2 * num_blocks, offset=HEAD_BYTES)
        self.generations: npt.NDArray[np.uint64] = words[:num_blocks]  # under which a block may be written
        self.epochs: npt.NDArray[np.uint64] = words[num_blocks:]  # incarnation of the worker that opened it

    @classmethod
    def create(cls, layout: KVLayout, num_blocks: int, shared: bool) -> Arena:
        """A new arena of zeroes, every block closed to writers. `shared`: other processes can `attach(arena.fd)`."""
        size = arena_bytes(layout, num_blocks)
        if shared:
            fd = create_arena_file(layout, num_blocks).fd
            return cls(layout, num_blocks, _map(fd, size), fd, owns_fd=True)
        mapping, start = _map(-1, size), arena_start(layout, num_blocks)
        mapping[: len(start)] = start
        return cls(layout, num_blocks, mapping, -1, owns_fd=False)

    @classmethod
    def attach(cls, fd: int, layout: KVLayout, num_blocks: int) -> Arena:
        """Map an arena made by another process. `fd` stays the caller's. LayoutMismatch if it is not as described."""
        size = arena_bytes(layout, num_blocks)
        actual = os.fstat(fd).st_size
        if actual != size:
            raise LayoutMismatch(
                f"The shared arena has {actual} bytes, {num_blocks} blocks of this layout need {size}; "
                "start every worker of the box with the same model, dtype, block size and number of blocks."
            )
        mapping = _map(fd, size)
        if mapping[: HEAD.size] != arena_head(layout, num_blocks):
            raise LayoutMismatch(
                "The shared arena was made for another KV layout of the same size; "
                "start every worker of the box with the same model, dtype and block size."
            )
        return cls(layout, num_blocks, mapping, fd, owns_fd=False)

    def block(self, block_id: BlockId) -> memoryview:
        """The writable bytes of one block. IndexError outside [0, num_blocks)."""
        return self._run(block_id, 1)

    def spans(self, block_ids: Sequence[BlockId]) -> list[memoryview]:
        """The bytes of the blocks in order; neighbours in memory are merged into one view."""
        views: list[memoryview] = []
        start = 0
        for end in range(1, len(block_ids) + 1):
            if end == len(block_ids) or block_ids[end] != block_ids[end - 1] + 1:
                views.append(self._run(block_ids[start], end - start))
                start = end
        return views

    def close_to_writers(self, block_ids: Iterable[BlockId]) -> None:
        """End every right to write these blocks, of whatever worker it came."""
        self.generations[list(block_ids)] = NO_GENERATION

    def copy_block(self, source: BlockId, target: BlockId) -> None:
        self.block(target)[:] = self.block(source)

    def close(self) -> None:
        """Unmap, and close the file if this process made it. Idempotent; views that others hold keep the memory."""
        self.buffer.release()
        self.generations = self.epochs = np.zeros(0, dtype=np.uint64)
        with contextlib.suppress(BufferError):
            self._mapping.close()
        if self._owns_fd:
            self._owns_fd = False
            os.close(self.fd)

    def _run(self, first: BlockId, count: int) -> memoryview:
        if not 0 <= first <= self.num_blocks - count:
            raise IndexError(f"block {first} (+{count}) is outside the arena of {self.num_blocks} blocks")
        return self.buffer[first * self.bytes_per_block : (first + count) * self.bytes_per_block]


def _map(fd: int, size: int) -> mmap.mmap:
    flags = mmap.MAP_SHARED if fd >= 0 else mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    mapping = mmap.mmap(fd, size, flags=flags)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without huge pages: ordinary ones do
            mapping.madvise(mmap.MADV_HUGEPAGE)
    return mapping
