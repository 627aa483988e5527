"""What a worker's last rank tells the ranks before it, and what one stage hands to the next, as lists of arrays.

Owns the words. A step is told whole, in the arrays that it is packed in: a rank keeps nothing of a sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from relevo.engine.inputs import StepInputs
from relevo.engine.ops.protocol import Hidden
from relevo.engine.ranks.collectives import Array

_STEP, _CORES = 0, 1
_DONE, _FAILED = 0, 1
_ARRAYS = [each.name for each in fields(StepInputs) if each.name != "block_size"]


@dataclass(frozen=True, slots=True)
class UseCores:
    """Compute on these from the next step on."""

    cores: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StageFailed:
    """A stage raised: the step brings nothing, and the next one finds every rank as it was."""

    reason: str


def step_order(inputs: StepInputs) -> list[Array]:
    return [np.array([_STEP, inputs.block_size]), *(getattr(inputs, name) for name in _ARRAYS)]


def cores_order(cores: Sequence[int]) -> list[Array]:
    return [np.array([_CORES, *cores])]


def read_order(arrays: Sequence[Array]) -> StepInputs | UseCores:
    kind, *numbers = arrays[0].tolist()
    if kind == _CORES:
        return UseCores(tuple(numbers))
    return StepInputs(block_size=numbers[0], **dict(zip(_ARRAYS, arrays[1:], strict=True)))


def handed_on(outcome: Hidden | StageFailed) -> list[Array]:
    if isinstance(outcome, StageFailed):
        return [np.array([_FAILED]), np.frombuffer(outcome.reason.encode(), dtype=np.uint8)]
    return [np.array([_DONE]), outcome]


def read_handed_on(arrays: Sequence[Array]) -> Hidden | StageFailed:
    kind, content = arrays
    if kind[0] == _FAILED:
        return StageFailed(content.tobytes().decode())
    return content
