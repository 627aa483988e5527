"""Hash ids for made-up prompts that repeat what was said before: a session is a text that only grows.

Knows lengths only. A block gets its id once it is full, so two prompts share exactly the whole blocks they have in
common.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator


class History:
    """What a session has said so far. `fresh_ids` never gives an id twice, and is shared by all sessions."""

    def __init__(self, block_size: int, fresh_ids: Iterator[int]) -> None:
        self.block_size = block_size
        self.num_tokens = 0
        self._fresh_ids = fresh_ids
        self._ids = array("q")

    def add(self, num_tokens: int) -> None:
        """New content at the end."""
        self.num_tokens += num_tokens
        for _ in range(self.num_tokens // self.block_size - len(self._ids)):
            self._ids.append(next(self._fresh_ids))

    @property
    def hash_ids(self) -> array[int]:
        """Of the whole blocks so far."""
        return self._ids[:]

    def fork(self, fresh_ids: Iterator[int] | None = None) -> History:
        """Another session that begins with the same content. `fresh_ids`: for what it says then; None: as here."""
        other = History(self.block_size, self._fresh_ids if fresh_ids is None else fresh_ids)
        other.num_tokens, other._ids = self.num_tokens, self._ids[:]
        return other
