"""The ranks of a worker that compute one stage together, as one of them has them.

Ranks are numbered stage by stage: those of a group follow each other, and the rank of the same place in the next stage
is one group further. Owns the sums inside a step and the word at its end: whatever one of them raises, all of them
hear, and the next step finds all at its beginning. Between two words ranks exchange single arrays only, parts of sums
or rows of one another's experts, so a word in place of one says that its sender has left the step.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np

from relevo.engine.ops.protocol import Hidden
from relevo.engine.ranks.collectives import PIECE_BYTES, Array, Collectives, Float32Array, RankLost
from relevo.engine.ranks.pairwise import tree_sum
from relevo.engine.ranks.step_messages import (
    Piece,
    StageFailed,
    Step,
    is_word,
    read_handed_on,
    read_word,
    word_of,
)

log = logging.getLogger("relevo.engine")

_Made = TypeVar("_Made")


class StepLeft(Exception):
    """Another rank of the group has raised, and its part of a sum will not come."""


class RankGroup:
    """Implements engine.ops.ranks.RankSums: `rank` and `size` are of the group."""

    def __init__(self, ranks: Collectives, size: int) -> None:
        """`size`: of every group of the worker's."""
        assert ranks.size % size == 0, f"{ranks.size} ranks are not groups of {size}"
        first = ranks.rank - ranks.rank % size
        self.rank, self.size, self.collectives = ranks.rank - first, size, ranks
        self.before = ranks.rank - size if first > 0 else None  # who hands states to this rank
        self.behind = ranks.rank + size if first + size < ranks.size else None  # whom it hands them to
        self._members = range(first, first + size)
        self._others = [each for each in self._members if each != ranks.rank]
        self._words: dict[int, StageFailed | None] = {}  # of this step, by who has said one

    def all_reduce(self, array: Float32Array) -> None:
        """Piece by piece, so that all may send before any of them reads. Raises RankLost, StepLeft."""
        rows = max(1, PIECE_BYTES // max(1, array.nbytes // max(1, len(array))))
        for first in range(0, len(array), rows):
            piece = array[first : first + rows]
            for other in self._others:
                self.collectives.send(other, [piece])
            parts = {self.collectives.rank: piece} | {other: self._part_of(other) for other in self._others}
            piece[...] = tree_sum([parts[member] for member in self._members])

    def exchange_rows(self, outgoing: Sequence[Float32Array], incoming: Sequence[Float32Array], most_rows: int) -> None:
        """In pieces like those of sums, an empty one where there is nothing left: a rank that waits for another one has
        sent it all that it may be waiting for. Raises RankLost, StepLeft."""
        first_rank, row_bytes = self._members.start, outgoing[0].shape[1] * outgoing[0].itemsize
        rows = max(1, PIECE_BYTES // row_bytes)
        for first in range(0, most_rows, rows):
            for other in self._others:
                self.collectives.send(other, [outgoing[other - first_rank][first : first + rows]])
            for other in self._others:
                incoming[other - first_rank][first : first + rows] = self._part_of(other)

    def piece_by_piece(
        self, step: Step, compute: Callable[[Piece, Hidden | None], _Made]
    ) -> Iterator[tuple[Piece, _Made | StageFailed]]:
        """What each piece of a step comes to on this rank, of what the stage before hands on of it (None: there is
        none). Behind one that has failed none is computed, and all say the same. Raises RankLost."""
        failed: StageFailed | None = None
        for piece in step.pieces():
            arrived = None if self.before is None else read_handed_on(self.collectives.receive(self.before))
            outcome: _Made | StageFailed
            if failed is not None:
                outcome = failed
            elif isinstance(arrived, StageFailed):
                outcome = arrived
            else:
                outcome = self.together(partial(compute, piece, arrived))
            failed = outcome if isinstance(outcome, StageFailed) else None
            yield piece, outcome

    def together(self, compute: Callable[[], _Made]) -> _Made | StageFailed:
        """What a step comes to on this rank; all ranks of the group call it. Where one of them raises, all get the same
        StageFailed. Raises RankLost."""
        self._words.clear()
        made: _Made | StageFailed
        try:
            made = compute()
        except RankLost:
            raise
        except StepLeft:
            made = next(word for word in self._words.values() if word is not None)
        except Exception as error:
            log.exception("a step failed")
            made = StageFailed(f"{type(error).__name__} in rank {self.collectives.rank}: {error}")
        return self._failure(made if isinstance(made, StageFailed) else None) or made

    def _failure(self, own: StageFailed | None) -> StageFailed | None:
        """Tell the others, and hear them: the first failure in the order of ranks, if there is one."""
        for other in self._others:
            self.collectives.send(other, word_of(own))
        for other in self._others:
            while other not in self._words:
                arrived = self.collectives.receive(other)
                if is_word(arrived):
                    self._words[other] = read_word(arrived)
        words = self._words | {self.collectives.rank: own}
        return next((words[member] for member in self._members if words[member] is not None), None)

    def _part_of(self, other: int) -> Array:
        arrived: Sequence[Any] = self.collectives.receive(other)
        if is_word(arrived):
            self._words[other] = read_word(arrived) or StageFailed(f"rank {other} ended the step before the others")
            raise StepLeft
        (part,) = arrived
        return np.asarray(part)
