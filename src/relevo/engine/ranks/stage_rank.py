"""A rank that is not the last one of its worker: computes its share of a stage of every step, and hands on what it
comes to.

It knows no requests and decides nothing. What raises in a step is handed on in place of the stage's states, so that
every step brings one message over every link whatever happens, and the last rank can tell its loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from relevo.engine.models.spec import Model
from relevo.engine.ops.protocol import Buffer, Hidden
from relevo.engine.ranks.rank_group import RankGroup
from relevo.engine.ranks.step_messages import StageFailed, Step, UseCores, handed_on, read_handed_on, read_order


class StageRank:
    def __init__(
        self, model: Model, kv: Buffer, group: RankGroup, use_cores: Callable[[Sequence[int]], object]
    ) -> None:
        """`kv`: the cache of the whole worker, of which this rank writes its own layers, or its heads of them."""
        self._model, self._kv, self._group, self._use_cores = model, kv, group, use_cores

    def run(self) -> None:
        """Until a rank has ended, which all of them do when their worker does: raises RankLost."""
        while True:
            self.turn()

    def turn(self) -> None:
        """One thing that the last rank says."""
        ranks = self._group.collectives
        order = read_order(ranks.receive(ranks.size - 1))
        if isinstance(order, UseCores):
            self._use_cores(order.cores)
        elif self._group.behind is None:
            self._compute_last(order)
        else:
            ranks.send(self._group.behind, handed_on(self._computed(order)))

    def _compute_last(self, step: Step) -> None:
        """What it comes to all ranks of the group have, and the last one takes it further."""
        arrived = self._arrived()
        if not isinstance(arrived, StageFailed):
            self._group.together(lambda: self._model.forward(step.inputs, self._kv, step.logit_tokens, arrived))

    def _computed(self, step: Step) -> Hidden | StageFailed:
        arrived = self._arrived()
        if isinstance(arrived, StageFailed):
            return arrived
        return self._group.together(lambda: self._model.forward_inner(step.inputs, self._kv, arrived))

    def _arrived(self) -> Hidden | StageFailed | None:
        before = self._group.before
        return None if before is None else read_handed_on(self._group.collectives.receive(before))
