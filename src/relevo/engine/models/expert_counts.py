"""How many tokens passed each expert of each layer, as backends count them while they choose.

Every rank chooses for all tokens of a step, whichever experts it has, so each counts whole layers: those of its stage.
Owns the numbers. Does not know who asks for them, nor which steps they are of.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from relevo.core.events import ExpertLoads
from relevo.core.model import ModelConfig

Counts = npt.NDArray[np.int64]


class ExpertCounts:
    def __init__(self, layers: Sequence[int], num_experts: int, num_ranks: int = 0) -> None:
        """`layers`: those with experts that are computed here, by their places in the model. `num_ranks`: of
        several that have experts whole; 0: there are none."""
        self.layers = tuple(layers)
        self.tokens: Counts = np.zeros((len(self.layers), num_experts), dtype=np.int64)
        self.ranks: Counts = np.zeros((len(self.layers), num_ranks), dtype=np.int64)

    @classmethod
    def of_stage(cls, config: ModelConfig, stage: range) -> ExpertCounts:
        """`config`: of the model, or of a slice of it."""
        if (experts := config.experts) is None:
            return cls((), 0)
        num_ranks = experts.places[0].num_ranks if experts.places and experts.places[0].num_ranks > 1 else 0
        return cls([layer for layer in stage if layer in experts.layers], experts.num_experts, num_ranks)

    def of_layer(self, layer: int) -> tuple[Counts, Counts | None]:
        """[experts] and [ranks], to be added to; None: there are no ranks with whole experts."""
        place = self.layers.index(layer)
        return self.tokens[place], self.ranks[place] if self.ranks.size else None

    def clear(self) -> None:
        self.tokens.fill(0)
        self.ranks.fill(0)

    def loads(self) -> ExpertLoads:
        tokens, ranks = (tuple(map(tuple, counts.tolist())) for counts in (self.tokens, self.ranks))
        return ExpertLoads(layers=self.layers, tokens=tokens, ranks=ranks if self.ranks.size else ())
