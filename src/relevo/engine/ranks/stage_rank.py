"""A rank that is not the last one of its worker: computes a stage of every step, and hands on what it comes to.

It knows no requests and decides nothing. What raises in a step is handed on in place of the stage's states, so that
every step brings one message over every link whatever happens, and the last rank can tell its loop.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from relevo.engine.inputs import StepInputs
from relevo.engine.models.spec import Model
from relevo.engine.ops.protocol import Buffer, Hidden
from relevo.engine.ranks.collectives import Collectives, RankLost
from relevo.engine.ranks.step_messages import StageFailed, UseCores, handed_on, read_handed_on, read_order

log = logging.getLogger("relevo.engine")


class StageRank:
    def __init__(
        self, model: Model, kv: Buffer, ranks: Collectives, use_cores: Callable[[Sequence[int]], object]
    ) -> None:
        """`kv`: the cache of the whole worker, of which this rank writes its own layers."""
        self._model, self._kv, self._ranks, self._use_cores = model, kv, ranks, use_cores

    def run(self) -> None:
        """Until a rank has ended, which all of them do when their worker does: raises RankLost."""
        while True:
            self.turn()

    def turn(self) -> None:
        """One thing that the last rank says."""
        order = read_order(self._ranks.receive(self._ranks.size - 1))
        if isinstance(order, UseCores):
            self._use_cores(order.cores)
        else:
            self._ranks.send(self._ranks.rank + 1, handed_on(self._computed(order)))

    def _computed(self, inputs: StepInputs) -> Hidden | StageFailed:
        rank, hidden = self._ranks.rank, None
        if rank > 0:
            arrived = read_handed_on(self._ranks.receive(rank - 1))
            if isinstance(arrived, StageFailed):
                return arrived
            hidden = arrived
        try:
            return self._model.forward_inner(inputs, self._kv, hidden)
        except RankLost:
            raise
        except Exception as error:
            log.exception("a step failed")
            return StageFailed(f"{type(error).__name__} in rank {rank}: {error}")
