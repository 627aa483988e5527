"""A model whose layers are computed by several ranks, one after the other, as the last of them has it.

The last rank is the worker's own process: it has the last layers, the output layer, the scheduler and the sampler. What
it says to the others is in `step_messages`, what they do in `stage_rank`. One step is in the pipe at a time, so a block
that is copied before a step is copied whole, here, while no other rank writes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NoReturn

from relevo.engine.inputs import StepInputs
from relevo.engine.models.spec import Model
from relevo.engine.ops.protocol import Buffer, Hidden, StepLogits
from relevo.engine.ranks.collectives import Array, Collectives, RankLost
from relevo.engine.ranks.step_messages import StageFailed, cores_order, read_handed_on, step_order


class StepFailed(Exception):
    """A stage raised."""


class PipelinedModel:
    """Implements engine.models.spec.Model."""

    def __init__(self, last: Model, ranks: Collectives, on_lost: Callable[[RankLost], NoReturn]) -> None:
        """`on_lost` is called where a rank has ended: the worker's KV is not whole any more, so it ends too."""
        self.config, self.ops, self.max_model_len = last.config, last.ops, last.max_model_len
        self._last, self._ranks, self._on_lost = last, ranks, on_lost

    def forward(
        self, inputs: StepInputs, kv: Buffer, logit_tokens: Sequence[int], hidden: Hidden | None = None
    ) -> StepLogits:
        started = time.perf_counter()
        self._tell(step_order(inputs))
        try:
            arrived = read_handed_on(self._ranks.receive(self._ranks.rank - 1))
        except RankLost as lost:
            self._on_lost(lost)
        if isinstance(arrived, StageFailed):
            raise StepFailed(arrived.reason)
        logits = self._last.forward(inputs, kv, logit_tokens, arrived)
        return replace(logits, kernel_s=time.perf_counter() - started)  # the other stages' and the way between them too

    def forward_inner(self, inputs: StepInputs, kv: Buffer, hidden: Hidden | None) -> Hidden:
        return self._last.forward_inner(inputs, kv, hidden)

    def use_cores(self, cores: Sequence[int]) -> None:
        """Of the ranks before this one, from the next step on."""
        self._tell(cores_order(cores))

    def _tell(self, order: Sequence[Array]) -> None:
        try:
            for rank in range(self._ranks.rank):
                self._ranks.send(rank, order)
        except RankLost as lost:
            self._on_lost(lost)
