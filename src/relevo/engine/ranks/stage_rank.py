"""A rank that is not the last one of its worker: computes its share of a stage of every step, and hands on what it
comes to.

It knows no requests and decides nothing. What raises in a step is handed on in place of the stage's states, so that
every piece of a step brings one message over every link whatever happens, and the last rank can tell its loop.
"""

from __future__ import annotations

from relevo.engine.models.spec import Model
from relevo.engine.ops.protocol import Buffer, Hidden, StepLogits
from relevo.engine.ranks.rank_cores import RankCores
from relevo.engine.ranks.rank_group import RankGroup
from relevo.engine.ranks.step_messages import Piece, Step, UseCores, handed_on, read_order


class StageRank:
    def __init__(self, model: Model, kv: Buffer, group: RankGroup, cores: RankCores) -> None:
        """`kv`: the cache of the whole worker, of which this rank writes its own layers, or its heads of them."""
        self._model, self._kv, self._group, self._cores = model, kv, group, cores

    def run(self) -> None:
        """Until a rank has ended, which all of them do when their worker does: raises RankLost."""
        while True:
            self.turn()

    def turn(self) -> None:
        """One thing that the last rank says."""
        ranks = self._group.collectives
        order = read_order(ranks.receive(ranks.size - 1))
        if isinstance(order, UseCores):
            self._cores.use(order.cores)
            return
        self._cores.divide(len(order.ends) > 1)
        if self._group.behind is None:
            self._compute_last(order)
        else:
            self._compute_inner(order, self._group.behind)

    def _compute_inner(self, step: Step, behind: int) -> None:
        def compute(piece: Piece, arrived: Hidden | None) -> Hidden:
            return self._model.forward_inner(piece.inputs, self._kv, arrived)

        for _, outcome in self._group.piece_by_piece(step, compute):
            self._group.collectives.send(behind, handed_on(outcome))

    def _compute_last(self, step: Step) -> None:
        """What it comes to all ranks of the group have, and the last one takes it further."""

        def compute(piece: Piece, arrived: Hidden | None) -> StepLogits:
            return self._model.forward(piece.inputs, self._kv, piece.logit_tokens, arrived)

        for _ in self._group.piece_by_piece(step, compute):
            pass
