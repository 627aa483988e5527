"""Arithmetic on rows of logits that a backend may do better than numpy: the sampler's only view of where they lie.

Owns the words and the numpy reference. A backend that computes logits in its own memory brings its own `RowMath`, so
that a greedy or a plainly sampled row is never copied to numpy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from relevo.core.ids import TokenId
from relevo.core.request import SamplingParams
from relevo.engine.sampling_math import Logits, TokenIds, candidates, draw, waits

Masks = npt.NDArray[np.uint32]  # [N, ceil(V / 32)], see `let_through`


@dataclass(frozen=True, slots=True)
class RowSummaries:
    best: TokenIds  # [R], the lowest id of the largest logit
    finite: npt.NDArray[np.bool_]  # [R], neither NaN nor infinity in the row


@dataclass(frozen=True, slots=True)
class RowDraw:
    """A draw from row `row` for output token `position` of continuation `sample_index`; not greedy."""

    row: int
    sampling: SamplingParams
    sample_index: int
    position: int


class RowMath(Protocol):
    def summarise(self, logits: Logits) -> RowSummaries:
        """logits: [R, V]"""
        ...

    def draw(self, logits: Logits, draws: Sequence[RowDraw]) -> list[TokenId]:
        """One token per draw, in their order; the rows they name have no NaN and a finite best. Minus infinity is never
        drawn."""
        ...

    def mask(self, logits: Logits, rows: Sequence[int], masks: Masks, masked: Logits) -> TokenIds:
        """Into `masked` [N, V] what `masks` leave of these rows of `logits` [R, V], minus infinity elsewhere. The best
        token of each, [N]. `masked` may be `logits` where rows are 0, 1, 2, and so on."""
        ...


class NumpyRowMath:
    """The reference."""

    def summarise(self, logits: Logits) -> RowSummaries:
        finite = np.isfinite(logits.max(axis=1)) & np.isfinite(logits.min(axis=1))  # NaN wins both
        return RowSummaries(logits.argmax(axis=1), finite)

    def draw(self, logits: Logits, draws: Sequence[RowDraw]) -> list[TokenId]:
        return [draw_from(logits[one.row], one.sampling, one.sample_index, one.position) for one in draws]

    def mask(self, logits: Logits, rows: Sequence[int], masks: Masks, masked: Logits) -> TokenIds:
        for place, row in enumerate(rows):
            masked[place] = np.where(let_through(masks[place], logits.shape[1]), logits[row], np.float32(-np.inf))
        best: TokenIds = masked.argmax(axis=1)
        return best


def let_through(mask: Masks, vocab_size: int) -> npt.NDArray[np.bool_]:
    """[V] of a mask [ceil(V / 32)], in which token i is bit i % 32 of word i // 32."""
    bits = np.unpackbits(np.ascontiguousarray(mask).view(np.uint8), bitorder="little")
    return bits[:vocab_size].astype(np.bool_)


def draw_from(row: Logits, sampling: SamplingParams, sample_index: int, position: int) -> TokenId:
    """`row`: [V]"""
    token_ids, weights = candidates(row, sampling)
    token_waits = waits(sampling.seed, sample_index, position, len(row))
    index = draw(weights, token_waits if token_ids is None else token_waits[token_ids])
    return index if token_ids is None else int(token_ids[index])
