"""What operations ask of the other ranks that compute the same step.

Owns the smallest promise that they need, and the way to change what all ranks share.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt


class RankSums(Protocol):
    """Of one rank of a tensor group. Every rank makes the same calls in the same order."""

    rank: int
    size: int

    def all_reduce(self, array: npt.NDArray[np.float32]) -> None:
        """In place: the sum over all ranks, with the same bits on each, added as a balanced binary tree in the order of
        ranks. Raises an error when another rank is gone."""
        ...

    def exchange_rows(
        self,
        outgoing: Sequence[npt.NDArray[np.float32]],
        incoming: Sequence[npt.NDArray[np.float32]],
        most_rows: int,
    ) -> None:
        """By rank: send it some rows, and fill others with those that it sends. `most_rows`: that any rank sends to
        another. What a rank has for itself stays where it is. Raises an error when another rank is gone."""
        ...


def once_for_all(ranks: RankSums | None, change: Callable[[], None]) -> None:
    """Make a change to memory that all ranks map: by one of them, while none computes."""
    if ranks is None:
        change()
        return
    _meet(ranks)
    if ranks.rank == 0:
        change()
    _meet(ranks)


def _meet(ranks: RankSums) -> None:
    ranks.all_reduce(np.zeros(1, np.float32))
