"""The nameless file that a shared arena lies on: its size, its head, and every block closed to writers.

Owns what stands in front of the blocks (see `kv.arena`, which maps it). Without numpy: the supervisor makes the
file and never looks into it.
"""

from __future__ import annotations

import fcntl
import os
import struct
import tempfile

from relevo.core.kv import KVLayout
from relevo.kv.huge_pages import SharedFile, huge_page_file
from relevo.kv.layout_check import layout_digest

NO_GENERATION = 2**64 - 1  # the block is open to no writer; no reservation carries this value
HEAD = struct.Struct("<8sQQ16s")  # magic, num_blocks, bytes_per_block, layout digest
IDENTITY_BYTES = 16  # behind HEAD; no inode, which another file has later, and no process id, which containers share
HEAD_BYTES = 64
_MAGIC = b"RLVARENA"
_HUGE_PAGE_BYTES = 2 * 1024 * 1024


def create_arena_file(layout: KVLayout, num_blocks: int) -> SharedFile:
    """A new file of zeroes behind its head; the caller closes its descriptor. Others `Arena.attach` it."""
    size = arena_bytes(layout, num_blocks)
    found = huge_page_file()
    if found.fd < 0:
        fd = nameless_file("relevo-arena", size)
    else:
        fd = found.fd
        os.ftruncate(fd, size)
    start = arena_start(layout, num_blocks)
    if os.pwrite(fd, start, 0) != len(start):
        os.close(fd)
        raise OSError("the head of the KV arena could not be written")
    return SharedFile(fd, found.pages)


def arena_start(layout: KVLayout, num_blocks: int) -> bytes:
    """What a new arena begins with: its head, a number of its own, and generations that admit no writer."""
    head = arena_head(layout, num_blocks) + os.urandom(IDENTITY_BYTES)
    return head.ljust(HEAD_BYTES, b"\0") + NO_GENERATION.to_bytes(8, "little") * num_blocks


def arena_head(layout: KVLayout, num_blocks: int) -> bytes:
    return HEAD.pack(_MAGIC, num_blocks, layout.bytes_per_block, layout_digest(layout))


def arena_bytes(layout: KVLayout, num_blocks: int) -> int:
    """Raises ValueError for an arena of nothing."""
    if num_blocks < 1 or layout.bytes_per_block < 1:
        raise ValueError(f"an arena needs at least one block of one byte, not {num_blocks} blocks of {layout}")
    return data_offset(num_blocks) + num_blocks * layout.bytes_per_block


def data_offset(num_blocks: int) -> int:
    """Of block 0, bytes: behind the head and both tables, at a multiple of a huge page."""
    return -(-(HEAD_BYTES + 16 * num_blocks) // _HUGE_PAGE_BYTES) * _HUGE_PAGE_BYTES


def nameless_file(name: str, size: int) -> int:
    """Of that size for ever, where the kernel can promise it: a process that shrank it would end all that map it.
    `name` is for people who look at a process's descriptors."""
    if not hasattr(os, "memfd_create"):
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
        os.ftruncate(fd, size)
        return fd
    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.fchmod(fd, 0o600)
    os.ftruncate(fd, size)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    return fd
