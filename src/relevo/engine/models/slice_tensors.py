"""What a slice has of the tensors of a checkpoint.

Owns the cutting; where is `slice_places`'. Parts are copies, so that nothing keeps the whole, and all begin at the same
place of a cache line: torch's products choose their loops, and so their bits, by that too.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from relevo.core.model import ModelConfig
from relevo.engine.models.slice_places import SlicePlaces, stored_columns
from relevo.engine.models.slices import Slice
from relevo.engine.models.weight_plan import delta_plan, expert_layers, expert_plan
from relevo.engine.ops.protocol import HostTensor

_LINE_BYTES = 64
_OF_STATES = ("in_proj_qkv.weight", "conv1d.weight")


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
            rows = _rows(tensor.array, cut.first, cut.stop, self._parts.get(name, (len(tensor.array),)))
            return HostTensor(_copied(rows, (cut.size, *rows.shape[1:])), tensor.dtype)
        start, end, width = stored_columns(name, tensor.dtype, cut)
        columns = tensor.array[:, start:end]
        return HostTensor(_copied(columns, (len(columns), width)), tensor.dtype)


def _names_of_parts(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Rows of tensors that are several things one after the other, of each of which a slice has its part: gates and the
    values beside them; queries, keys and values of layers that keep states."""
    found: dict[str, tuple[int, ...]] = {}
    if config.experts is not None and len(config.experts.projections) <= 2:
        plans = [expert_plan(config, index) for index in expert_layers(config)]
        groups = [group for plan in plans for group in (*plan.gate_up, *plan.gate_up_bias)]
        found |= {name: (shape[0] // 2,) * 2 for group in groups for name, shape in group.items()}
    if (delta := config.delta) is not None:
        parts = (delta.num_keys, delta.num_keys, delta.num_values)
        groups = [group for index in delta.layers for group in delta_plan(config, index).values()]
        found |= {name: parts for group in groups for name in group if name.endswith(_OF_STATES)}
    return found


def _rows(array: npt.NDArray[Any], first: int, stop: int, parts: Sequence[int]) -> npt.NDArray[Any]:
    """Of each part as much as from `first` to `stop` of the whole."""
    if len(parts) == 1:
        return array[first:stop]
    found, begin = [], 0
    for size in parts:
        found.append(array[begin + first * size // len(array) : begin + stop * size // len(array)])
        begin += size
    return np.concatenate(found)


def _copied(array: npt.NDArray[Any], shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """With zeros behind it, up to this shape. They are zeros in every way of storing weights."""
    num_bytes = prod(shape) * array.itemsize
    memory = np.zeros(num_bytes + _LINE_BYTES, np.uint8)
    first = -memory.ctypes.data % _LINE_BYTES
    copy = memory[first : first + num_bytes].view(array.dtype).reshape(shape)
    copy[tuple(slice(size) for size in array.shape)] = array
    return copy
