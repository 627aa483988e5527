"""Pieces of a step in the pipe: several stages compute at once, on cores that they divide, and one that fails ends its
step and no other.

Models are scripted: what a stage hands on says which piece it is of. Red when a stage waits for the one behind it, when
a piece is computed behind one that has failed, when a message of a failed step is taken for one of the next, or when a
stage of a filled pipe computes on another's cores.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, NoReturn

import numpy as np
import pytest

from relevo.engine.inputs import StepInputs
from relevo.engine.ops.protocol import StepLogits
from relevo.engine.ranks.collectives import RankLost
from relevo.engine.ranks.pairwise import PairwiseCollectives
from relevo.engine.ranks.pieces import PieceRule
from relevo.engine.ranks.rank_cores import RankCores
from relevo.engine.ranks.rank_group import RankGroup
from relevo.engine.ranks.ranked_model import RankedModel, StepFailed
from relevo.engine.ranks.stage_rank import StageRank

WAIT_S = 60.0
PIECE = 4
Note = Callable[[int, int], None]  # a stage begins a piece, by the first token's position


class ScriptedModel:
    """Of stage `number`: hands on the positions, each raised by what the stages so far have added."""

    expert_counts = None
    max_model_len = 1000

    def __init__(self, number: int, begins: Note, *, is_batch_invariant: bool = True) -> None:
        self.config = SimpleNamespace(vocab_size=1)
        self.ops = SimpleNamespace(is_batch_invariant=is_batch_invariant)
        self._number, self._begins = number, begins

    def forward_inner(self, inputs: StepInputs, kv: Any, hidden: np.ndarray | None) -> np.ndarray:
        self._begins(self._number, int(inputs.positions[0]))
        before = inputs.positions[:, None] if hidden is None else hidden
        assert len(before) == inputs.num_tokens
        return np.asarray(before + 1000)

    def forward(self, inputs: StepInputs, kv: Any, logit_tokens: Sequence[int], hidden: Any = None) -> StepLogits:
        made = self.forward_inner(inputs, kv, hidden)
        return StepLogits(made[list(logit_tokens)].astype(np.float32), None, 0.0)


@contextmanager
def pipe(num_stages: int, begins: Note, cores: Sequence[int] = range(8), **last: Any) -> Iterator[Any]:
    """The last rank, and on which cores each rank was told to compute."""
    groups = [RankGroup(each, 1) for each in PairwiseCollectives.local(num_stages)]
    told: list[list[tuple[int, ...]]] = [[] for _ in groups]

    def cores_of(rank: int) -> RankCores:
        def compute_on(own: Sequence[int]) -> bool:
            told[rank].append(tuple(own))
            return True

        return RankCores(cores, rank, 1, num_stages, compute_on)

    def run(rank: int) -> None:
        with pytest.raises(RankLost):
            StageRank(ScriptedModel(rank, begins), None, groups[rank], cores_of(rank)).run()  # type: ignore[arg-type]

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(num_stages - 1)]
    for thread in threads:
        thread.start()
    model = ScriptedModel(num_stages - 1, begins, **last)
    try:
        yield RankedModel(model, groups[-1], cores_of(num_stages - 1), raise_lost, PieceRule(PIECE, least=1)), told  # type: ignore[arg-type]
    finally:
        for group in groups:
            group.collectives.close()
        for thread in threads:
            thread.join(WAIT_S)
            assert not thread.is_alive()


def raise_lost(lost: RankLost) -> NoReturn:
    raise lost


def step(num_tokens: int, first: int = 0) -> StepInputs:
    """One row, in blocks of one token."""
    positions = np.arange(first, first + num_tokens)
    return StepInputs(
        token_ids=positions,
        positions=positions,
        block_of_token=positions[None],
        offset_of_token=np.zeros(num_tokens, np.int64),
        row_first_token=np.array([0, num_tokens]),
        context_lengths=np.array([first + num_tokens]),
        block_tables=np.arange(first + num_tokens)[None, None],
        block_size=1,
    )


def answers(model: RankedModel, inputs: StepInputs) -> list[float]:
    asked = range(inputs.num_tokens)
    return [float(value) for value in model.forward(inputs, None, asked).values[:, 0]]


def silent(stage: int, first: int) -> None:
    pass


@pytest.mark.parametrize("num_stages", [2, 3, 4])
def test_as_many_pieces_are_computed_at_once_as_there_are_stages(num_stages: int) -> None:
    """Every stage but the first waits in its first piece until all of them compute one."""
    in_pipe = threading.Barrier(num_stages, timeout=WAIT_S)

    def begins(stage: int, first: int) -> None:
        if stage * PIECE + first == (num_stages - 1) * PIECE:
            in_pipe.wait()  # stage s has piece N - 1 - s

    with pipe(num_stages, begins, range(12)) as (model, _):
        assert answers(model, step(4 * PIECE)) == [1000.0 * num_stages + place for place in range(4 * PIECE)]


@pytest.mark.parametrize("stage", [0, 1, 2])
@pytest.mark.parametrize("failing", [0, 2, 3])
def test_what_fails_in_a_piece_ends_the_step_and_nothing_else(stage: int, failing: int) -> None:
    begun: list[tuple[int, int]] = []

    def begins(number: int, first: int) -> None:
        begun.append((number, first))
        if (number, first) == (stage, failing * PIECE):
            raise MemoryError("no room")

    with pipe(3, begins, range(3)) as (model, _):
        for _ in range(2):
            with pytest.raises(StepFailed, match=f"MemoryError in rank {stage}: no room"):
                answers(model, step(4 * PIECE))
        later = [first for number, first in begun if number >= stage and first > failing * PIECE]
        assert not later, "what follows a failed piece is not computed"
        assert answers(model, step(4 * PIECE, first=100)) == [3100.0 + place for place in range(4 * PIECE)]


def test_stages_of_a_filled_pipe_divide_the_cores_and_have_all_of_them_else() -> None:
    whole = tuple(range(8))
    with pipe(2, silent) as (model, told):
        for num_tokens in (1, 4 * PIECE, 2 * PIECE, 1, 1, 3 * PIECE):
            answers(model, step(num_tokens))
    assert told == [[(0, 1, 2, 3), whole, (0, 1, 2, 3)], [(4, 5, 6, 7), whole, (4, 5, 6, 7)]]


def test_changed_cores_are_divided_too() -> None:
    with pipe(2, silent) as (model, told):
        answers(model, step(4 * PIECE))
        assert model.use_cores([5, 6])
        answers(model, step(4 * PIECE))
    assert told == [[(0, 1, 2, 3), (5, 6), (5,)], [(4, 5, 6, 7), (5, 6), (6,)]]


@pytest.mark.parametrize(
    ("cores", "is_batch_invariant", "is_cut"),
    [
        (range(2), True, True),
        (range(1), True, False),  # they would take turns on it
        (range(3), True, False),  # a third would stay idle
        (range(17), True, True),
        (range(2), False, False),  # bits would follow the cut
    ],
)
def test_when_steps_are_cut(cores: Sequence[int], is_batch_invariant: bool, is_cut: bool) -> None:
    begun = []
    with pipe(2, lambda stage, first: begun.append(first), cores, is_batch_invariant=is_batch_invariant) as (model, _):
        answers(model, step(4 * PIECE))
    assert len(begun) == (8 if is_cut else 2)


@pytest.mark.parametrize("num_stages", [1, 2, 3, 5])
@pytest.mark.parametrize("num_tokens", [*range(1, 40), 255, 256, 257, 500, 512, 8192])
def test_pieces_cover_a_step_evenly_in_bounds(num_tokens: int, num_stages: int) -> None:
    rule, behind = PieceRule(), num_stages - 1
    sizes = np.diff([0, *rule.ends(num_tokens, num_stages)])
    assert sizes.sum() == num_tokens
    assert sizes.max() - sizes.min() <= 1
    if len(sizes) > 1:
        assert sizes.min() >= rule.tokens
        assert rule.least * behind <= len(sizes) <= rule.most * behind
    else:
        assert num_stages == 1 or num_tokens < rule.tokens * rule.least * behind
