"""What the ranks of one worker say to each other: arrays, to one or to all, and sums that all of them get.

Owns the promise. How arrays travel is in `links`, what all of it comes to in `pairwise`. It knows no model and no step.

Ranks are numbered from 0. Every rank makes the same calls of `broadcast`, `all_gather` and `all_reduce` in the same
order; `send` has its `receive` on the other side. Between two ranks arrays arrive in the order in which they were sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Float32Array = npt.NDArray[np.float32]

# So much in one `send` does not wait for the other's `receive`, where one piece before it is unread at most.
PIECE_BYTES = 2**20


class RankLost(Exception):
    """The process of another rank has ended. What it was to send will not come."""

    def __init__(self, rank: int) -> None:
        super().__init__(f"rank {rank} has ended")
        self.rank = rank


class Collectives(Protocol):
    """Of one rank. Every call may raise RankLost; no call has a deadline of its own: the process that starts the ranks
    ends one that hangs. Arrays that are received are the receiver's own, and writable."""

    rank: int
    size: int  # how many ranks there are

    def send(self, target: int, arrays: Sequence[Array]) -> None:
        """The arrays may be written again as soon as it returns."""
        ...

    def receive(self, source: int) -> list[Array]:
        """What `source` has sent in one call of `send`; waits for it."""
        ...

    def broadcast(self, source: int, arrays: Sequence[Array]) -> list[Array]:
        """Those of `source`, on every rank; what the others pass does not matter."""
        ...

    def all_gather(self, array: Array) -> list[Array]:
        """One of each rank, in the order of ranks, on every rank. They may differ in shape."""
        ...

    def all_reduce(self, array: Float32Array) -> None:
        """In place: the sum over all ranks, with the same bits on every rank, added as a balanced binary tree in the
        order of ranks: ((0 + 1) + (2 + 3)) + ((4 + 5) + (6 + 7)). All have one shape."""
        ...

    def close(self) -> None:
        """The others' calls raise RankLost from now on. Idempotent."""
        ...
