"""A model that several ranks compute, as the last of them has it.

The last rank is the worker's own process: it has the output layer, the scheduler and the sampler, tells the others what
comes next, and does its part of it. What it says is in `step_messages`, what the others do in `stage_rank`. One step is
under way at a time, so a block that is copied before a step is copied whole, here, while no other rank writes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NoReturn

from relevo.engine.inputs import StepInputs
from relevo.engine.models.spec import Model
from relevo.engine.ops.protocol import Buffer, Hidden, StepLogits
from relevo.engine.ranks.collectives import Array, RankLost
from relevo.engine.ranks.rank_group import RankGroup
from relevo.engine.ranks.step_messages import StageFailed, cores_order, read_handed_on, step_order


class StepFailed(Exception):
    """A rank raised: the step brings nothing, and the next one finds every rank as it was."""


class RankedModel:
    """Implements engine.models.spec.Model."""

    def __init__(self, last: Model, group: RankGroup, on_lost: Callable[[RankLost], NoReturn]) -> None:
        """`last`: of the last stage, its share of it. `group`: of that stage. `on_lost` is called where a rank has
        ended: the worker's KV is not whole any more, so it ends too."""
        self.config, self.ops, self.max_model_len = last.config, last.ops, last.max_model_len
        self.expert_counts = last.expert_counts
        self._last, self._group, self._on_lost = last, group, on_lost

    def forward(
        self, inputs: StepInputs, kv: Buffer, logit_tokens: Sequence[int], hidden: Hidden | None = None
    ) -> StepLogits:
        started = time.perf_counter()
        try:
            outcome = self._computed(inputs, kv, logit_tokens)
        except RankLost as lost:
            self._on_lost(lost)
        if isinstance(outcome, StageFailed):
            raise StepFailed(outcome.reason)
        return replace(outcome, kernel_s=time.perf_counter() - started)  # that of other stages, and the ways, too

    def forward_inner(self, inputs: StepInputs, kv: Buffer, hidden: Hidden | None) -> Hidden:
        return self._last.forward_inner(inputs, kv, hidden)

    def use_cores(self, cores: Sequence[int]) -> None:
        """Of the other ranks, from the next step on; each takes its part of them."""
        try:
            self._tell(cores_order(cores))
        except RankLost as lost:
            self._on_lost(lost)

    def _computed(self, inputs: StepInputs, kv: Buffer, logit_tokens: Sequence[int]) -> StepLogits | StageFailed:
        self._tell(step_order(inputs, logit_tokens))
        arrived = None
        if self._group.before is not None:
            arrived = read_handed_on(self._group.collectives.receive(self._group.before))
        if isinstance(arrived, StageFailed):
            return arrived
        return self._group.together(lambda: self._last.forward(inputs, kv, logit_tokens, arrived))

    def _tell(self, order: Sequence[Array]) -> None:
        for rank in range(self._group.collectives.rank):
            self._group.collectives.send(rank, order)
