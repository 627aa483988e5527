"""How many bytes of one kind are in memory at once, over all requests of a process."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class ByteAccount:
    """`take` before the bytes are kept, `give_back` once they are not."""

    max_bytes: int
    num_held: int = 0

    def take(self, num_bytes: int) -> bool:
        """False: the account is full, and nothing was taken."""
        if self.num_held + num_bytes > self.max_bytes:
            return False
        self.num_held += num_bytes
        return True

    def give_back(self, num_bytes: int) -> None:
        self.num_held -= num_bytes
        assert self.num_held >= 0, "more was given back than taken"
