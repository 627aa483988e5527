"""What a slice has of the tensors of a checkpoint.

Owns the cutting; where is `slice_places`'. Parts are copies, so that nothing keeps the whole, and all begin at the same
place of a cache line: torch's products choose their loops, and so their bits, by that too.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from relevo.core.model import ModelConfig
from relevo.engine.models.delta_weights import parts_of_delta
from relevo.engine.models.slice_places import Cut, SlicePlaces, stored_runs, stored_width
from relevo.engine.models.slices import Slice
from relevo.engine.models.weight_plan import delta_plan, expert_layers, expert_plan
from relevo.engine.ops.protocol import HostTensor

_LINE_BYTES = 64
_Rows = npt.NDArray[np.intp]


class SliceTensors:
    def __init__(self, config: ModelConfig, part: Slice) -> None:
        """`config`: of the whole model."""
        self._places, self._slice = SlicePlaces(config, part), part
        self._parts = _names_of_parts(config)

    def is_cut(self, name: str) -> bool:
        return self._places.cut(name) is not None

    def part(self, name: str, tensor: HostTensor) -> HostTensor:
        """Of a tensor that has the shape of the whole. Raises UnsupportedModel if a cut is inside a block."""
        if self._slice.is_whole:
            return tensor
        if (cut := self._places.cut(name)) is None:
            return HostTensor(_copied(tensor.array, tensor.array.shape), tensor.dtype)
        if cut.axis == 0:
            parts = self._parts.get(name)
            rows = tensor.array[cut.first : cut.stop] if parts is None else _rows(tensor.array, cut, parts)
            return HostTensor(_copied(rows, (cut.size, *rows.shape[1:])), tensor.dtype)
        runs = stored_runs(name, tensor.dtype, self._places.runs(name, cut))
        found = [tensor.array[:, run] for run in runs]
        columns = found[0] if len(found) == 1 else np.concatenate(found, axis=1)
        return HostTensor(_copied(columns, (len(columns), stored_width(name, tensor.dtype, cut.size))), tensor.dtype)


def _names_of_parts(config: ModelConfig) -> dict[str, tuple[_Rows, ...]]:
    """Where rows lie of tensors that are several things one after the other, of each of which a slice has its part:
    gates and the values beside them; queries, keys and values of layers that keep states. So of heads that a file has
    in another order."""
    found: dict[str, tuple[_Rows, ...]] = {}
    if config.experts is not None and len(config.experts.projections) <= 2:
        plans = [expert_plan(config, index) for index in expert_layers(config)]
        groups = [group for plan in plans for group in (*plan.gate_up, *plan.gate_up_bias)]
        found |= {name: _halves(shape[0]) for group in groups for name, shape in group.items()}
    if (delta := config.delta) is not None:
        groups = [group for index in delta.layers for group in delta_plan(config, index).values()]
        named = ((name, parts_of_delta(delta, name)) for group in groups for name in group)
        found |= {name: parts for name, parts in named if parts}
    return found


@cache
def _halves(size: int) -> tuple[_Rows, ...]:
    return np.arange(size // 2), np.arange(size // 2, size)


def _rows(array: npt.NDArray[Any], cut: Cut, parts: Iterable[_Rows]) -> npt.NDArray[Any]:
    """Of each part as much as the cut has of the whole."""
    size = len(array)
    rows = np.concatenate([part[cut.first * len(part) // size : cut.stop * len(part) // size] for part in parts])
    return np.take(array, rows, axis=0)


def _copied(array: npt.NDArray[Any], shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """With zeros behind it, up to this shape. They are zeros in every way of storing weights."""
    num_bytes = prod(shape) * array.itemsize
    memory = np.zeros(num_bytes + _LINE_BYTES, np.uint8)
    first = -memory.ctypes.data % _LINE_BYTES
    copy = memory[first : first + num_bytes].view(array.dtype).reshape(shape)
    copy[tuple(slice(size) for size in array.shape)] = array
    return copy
