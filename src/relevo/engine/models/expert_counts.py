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


class ExpertCounts:
    def __init__(self, layers: Sequence[int], num_experts: int) -> None:
        """`layers`: those with experts that are computed here, by their places in the model."""
        self.layers = tuple(layers)
        self.tokens: npt.NDArray[np.int64] = np.zeros((len(self.layers), num_experts), dtype=np.int64)

    @classmethod
    def of_stage(cls, config: ModelConfig, stage: range) -> ExpertCounts:
        experts = config.experts
        return cls((), 0) if experts is None else cls([e for e in stage if e in experts.layers], experts.num_experts)

    def of_layer(self, layer: int) -> npt.NDArray[np.int64]:
        """[experts], to be added to."""
        counts: npt.NDArray[np.int64] = self.tokens[self.layers.index(layer)]
        return counts

    def clear(self) -> None:
        self.tokens.fill(0)

    def loads(self) -> ExpertLoads:
        return ExpertLoads(layers=self.layers, tokens=tuple(map(tuple, self.tokens.tolist())))
