"""Blocks that a sender reads from until it has sent them, or until they are wanted back.

They are read with the lock held, in pieces that never wait for the network; so `give_back` returns within one such
piece, and when it has returned nothing reads the blocks any more. What is left of a frame that has begun goes out from
a copy: its receiver gets what was meant for it, whatever its sender has put there since.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable, Sequence


class LentBlocks:
    """Of one frame. Read and change `rest` only with `lock` held."""

    def __init__(self, views: Sequence[memoryview]) -> None:
        self.lock = threading.Lock()
        self.rest = [view.cast("B") for view in views if view.nbytes]  # not sent yet
        self.num_bytes = sum([view.nbytes for view in self.rest])  # of all
        self._copy: Callable[[], bytearray] | None = None

    @classmethod
    def of_copy(cls, copy: Callable[[], bytearray], num_bytes: int) -> LentBlocks:
        """Of so many bytes that `copy` puts together from blocks: when they are sent, or are wanted back before."""
        lent = cls(())
        lent._copy, lent.num_bytes = copy, num_bytes
        return lent

    def put_together(self) -> None:
        """Before anything is sent. Idempotent. From any thread."""
        with self.lock:
            if self._copy is not None:
                self.rest, self._copy = [memoryview(self._copy())], None

    def checksums(self, num_bytes: int) -> tuple[int, ...]:
        """crc32 of each run of so many bytes, before anything is sent."""
        with self.lock:
            return tuple(
                [zlib.crc32(view[at : at + num_bytes]) for view in self.rest for at in range(0, len(view), num_bytes)]
            )

    def give_back(self) -> None:
        """Idempotent. From any thread."""
        self.put_together()
        with self.lock:
            if self.rest:
                self.rest = [memoryview(b"".join(self.rest))]
