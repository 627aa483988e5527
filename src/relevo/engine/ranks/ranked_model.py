"""A model that several ranks compute, as the last of them has it.

The last rank is the worker's own process: it has the output layer, the scheduler and the sampler, tells the others what
comes next, and does its part of it. What it says is in `step_messages`, what the others do in `stage_rank`. One step is
under way at a time, in pieces that fill the pipe, so a block that is copied before a step is copied whole, here, while
no other rank writes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NoReturn

import numpy as np

from relevo.engine.inputs import StepInputs
from relevo.engine.models.spec import Model
from relevo.engine.ops.protocol import Buffer, Hidden, StepLogits
from relevo.engine.ranks.collectives import Array, RankLost
from relevo.engine.ranks.pieces import DEFAULT_RULE, PieceRule
from relevo.engine.ranks.rank_cores import RankCores
from relevo.engine.ranks.rank_group import RankGroup
from relevo.engine.ranks.step_messages import Piece, StageFailed, Step, cores_order, step_order
from relevo.engine.row_math import RowSummaries


class StepFailed(Exception):
    """A rank raised: the step brings nothing, and the next one finds every rank as it was."""


class RankedModel:
    """Implements engine.models.spec.Model."""

    def __init__(
        self,
        last: Model,
        group: RankGroup,
        cores: RankCores,
        on_lost: Callable[[RankLost], NoReturn],
        pieces: PieceRule = DEFAULT_RULE,
    ) -> None:
        """`last`: of the last stage, its share of it. `group`: of that stage. `cores`: of this rank. `on_lost` is
        called where a rank has ended: the worker's KV is not whole any more, so it ends too. `pieces`: how steps are
        cut."""
        self.config, self.ops, self.max_model_len = last.config, last.ops, last.max_model_len
        self.expert_counts = last.expert_counts
        self._last, self._group, self._cores, self._on_lost = last, group, cores, on_lost
        self._num_stages = group.collectives.size // group.size
        self._pieces = pieces

    def forward(
        self, inputs: StepInputs, kv: Buffer, logit_tokens: Sequence[int], hidden: Hidden | None = None
    ) -> StepLogits:
        started = time.perf_counter()
        try:
            logits = self._computed(Step(inputs, tuple(logit_tokens), self._ends(inputs.num_tokens)), kv)
        except RankLost as lost:
            self._on_lost(lost)
        return replace(logits, kernel_s=time.perf_counter() - started)  # that of other stages, and the ways, too

    def forward_inner(self, inputs: StepInputs, kv: Buffer, hidden: Hidden | None) -> Hidden:
        return self._last.forward_inner(inputs, kv, hidden)

    def use_cores(self, cores: Sequence[int]) -> bool:
        """Of the worker, from the next step on; each rank takes its part. False: it does not compute on cores."""
        try:
            self._tell(cores_order(cores))
        except RankLost as lost:
            self._on_lost(lost)
        return self._cores.use(cores)

    def _ends(self, num_tokens: int) -> tuple[int, ...]:
        """A token's bits must not depend on where its step is cut, and a stage that computes beside another one has
        fewer cores."""
        if self.ops.is_batch_invariant and self._cores.can_be_divided():
            return self._pieces.ends(num_tokens, self._num_stages)
        return (num_tokens,)

    def _computed(self, step: Step, kv: Buffer) -> StepLogits:
        """Raises RankLost, StepFailed; that when all ranks are through with the step."""

        def compute(piece: Piece, arrived: Hidden | None) -> StepLogits:
            return self._last.forward(piece.inputs, kv, piece.logit_tokens, arrived)

        self._cores.divide(len(step.ends) > 1)
        self._tell(step_order(step))
        outcomes = self._group.piece_by_piece(step, compute)
        if len(step.ends) == 1:
            ((_, outcome),) = outcomes
            return _made(outcome)
        logits, failed = JoinedLogits(len(step.logit_tokens), self.config.vocab_size), None
        for piece, outcome in outcomes:
            if isinstance(outcome, StageFailed):
                failed = outcome
            else:
                logits.take(piece, outcome)
        return _made(failed or logits.joined())

    def _tell(self, order: Sequence[Array]) -> None:
        for rank in range(self._group.collectives.rank):
            self._group.collectives.send(rank, order)


def _made(outcome: StepLogits | StageFailed) -> StepLogits:
    if isinstance(outcome, StageFailed):
        raise StepFailed(outcome.reason)
    return outcome


class JoinedLogits:
    """Of a step, from those of its pieces, each of which is valid until the next one is computed."""

    def __init__(self, num_asked: int, vocab_size: int) -> None:
        self._values = np.empty((num_asked, vocab_size), dtype=np.float32)
        self._best, self._finite = np.empty(num_asked, dtype=np.int64), np.empty(num_asked, dtype=np.bool_)
        self._have_summaries = True

    def take(self, piece: Piece, logits: StepLogits) -> None:
        places = list(piece.places)
        self._values[places] = logits.values
        if logits.summaries is None:
            self._have_summaries = False
        else:
            self._best[places], self._finite[places] = logits.summaries.best, logits.summaries.finite

    def joined(self) -> StepLogits:
        """Every piece was taken."""
        summaries = RowSummaries(self._best, self._finite) if self._have_summaries else None
        return StepLogits(self._values, summaries, kernel_s=0.0)
