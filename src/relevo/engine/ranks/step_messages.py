"""What a worker's last rank tells the others, what one stage hands to the next, and what the ranks of one stage say to
each other at the end of a step, as lists of arrays.

Owns the words. A step is told whole, in the arrays that it is packed in: a rank keeps nothing of a sequence.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any

import numpy as np

from relevo.engine.inputs import StepInputs
from relevo.engine.ops.protocol import Hidden
from relevo.engine.ranks.collectives import Array

_STEP, _CORES = 0, 1
_DONE, _FAILED = 0, 1
_ARRAYS = [each.name for each in fields(StepInputs) if each.name not in ("block_size", "state_blocks")]


@dataclass(frozen=True, slots=True)
class UseCores:
    """The worker computes on these from the next step on."""

    cores: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StageFailed:
    """A stage raised: the step brings nothing, and the next one finds every rank as it was."""

    reason: str


@dataclass(frozen=True, slots=True)
class Step:
    """In pieces, that pass through the stages one after the other."""

    inputs: StepInputs
    logit_tokens: tuple[int, ...]  # that the last stage goes on with behind its last attention
    ends: tuple[int, ...]  # of each piece, the token behind its last one

    def pieces(self) -> Iterator[Piece]:
        if len(self.ends) == 1:
            yield Piece(self.inputs, self.logit_tokens, tuple(range(len(self.logit_tokens))))
            return
        for first, last in pairwise((0, *self.ends)):
            places = tuple(place for place, token in enumerate(self.logit_tokens) if first <= token < last)
            asked = tuple(self.logit_tokens[place] - first for place in places)
            yield Piece(self.inputs.part(first, last), asked, places)


@dataclass(frozen=True, slots=True)
class Piece:
    inputs: StepInputs
    logit_tokens: tuple[int, ...]  # counted in the piece
    places: tuple[int, ...]  # of these among the step's


def step_order(step: Step) -> list[Array]:
    inputs = step.inputs
    return [
        np.array([_STEP, inputs.block_size]),
        np.array(step.ends, dtype=np.int64),
        np.array(step.logit_tokens, dtype=np.int64),
        *(getattr(inputs, name) for name in _ARRAYS),
        *inputs.state_blocks,
    ]


def cores_order(cores: Sequence[int]) -> list[Array]:
    return [np.array([_CORES, *cores])]


def read_order(arrays: Sequence[Array]) -> Step | UseCores:
    kind, *numbers = arrays[0].tolist()
    if kind == _CORES:
        return UseCores(tuple(numbers))
    ends, asked, *packed = arrays[1:]
    named: dict[str, Any] = dict(zip(_ARRAYS, packed, strict=False))
    inputs = StepInputs(block_size=numbers[0], **named, state_blocks=tuple(packed[len(_ARRAYS) :]))
    return Step(inputs, tuple(asked.tolist()), tuple(ends.tolist()))


def handed_on(outcome: Hidden | StageFailed) -> list[Array]:
    if isinstance(outcome, StageFailed):
        return word_of(outcome)
    return [np.array([_DONE]), outcome]


def read_handed_on(arrays: Sequence[Array]) -> Hidden | StageFailed:
    return read_word(arrays) or arrays[1]


def word_of(failed: StageFailed | None) -> list[Array]:
    """At the end of a step."""
    reason = failed.reason if failed is not None else ""
    return [np.array([_DONE if failed is None else _FAILED]), np.frombuffer(reason.encode(), dtype=np.uint8)]


def is_word(arrays: Sequence[Array]) -> bool:
    """And no part of a sum, which is one array."""
    return len(arrays) > 1


def read_word(arrays: Sequence[Array]) -> StageFailed | None:
    """None: its sender has computed the step."""
    kind, content = arrays
    return StageFailed(content.tobytes().decode()) if kind[0] == _FAILED else None
