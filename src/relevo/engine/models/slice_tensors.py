"""What a slice has of the tensors of a checkpoint.

Owns the cutting; where is `slice_places`'. Parts are copies, so that nothing keeps the whole, and all begin at the same
place of a cache line: torch's products choose their loops, and so their bits, by that too.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from relevo.core.model import ModelConfig
from relevo.engine.models.slice_places import SlicePlaces, stored_columns
from relevo.engine.models.slices import Slice
from relevo.engine.models.weight_plan import expert_layers, expert_plan
from relevo.engine.ops.protocol import HostTensor

_LINE_BYTES = 64


class SliceTensors:
    def __init__(self, config: ModelConfig, part: Slice) -> None:
        """`config`: of the whole model."""
        self._places, self._slice = SlicePlaces(config, part), part
        self._paired = _paired_names(config)

    def is_cut(self, name: str) -> bool:
        return self._places.cut(name) is not None

    def part(self, name: str, tensor: HostTensor) -> HostTensor:
        """Of a tensor that has the shape of the whole. Raises UnsupportedModel if a cut is inside a block."""
        if self._slice.is_whole:
            return tensor
        if (cut := self._places.cut(name)) is None:
            return HostTensor(_copied(tensor.array, tensor.array.shape), tensor.dtype)
        if cut.axis == 0:
            rows = _rows(tensor.array, cut.first, cut.stop, num_halves=2 if name in self._paired else 1)
            return HostTensor(_copied(rows, (cut.size, *rows.shape[1:])), tensor.dtype)
        start, end, width = stored_columns(name, tensor.dtype, cut)
        columns = tensor.array[:, start:end]
        return HostTensor(_copied(columns, (len(columns), width)), tensor.dtype)


def _paired_names(config: ModelConfig) -> frozenset[str]:
    """Tensors that are gates and the values beside them, one half after the other."""
    if config.experts is None or len(config.experts.projections) > 2:
        return frozenset()
    plans = [expert_plan(config, index) for index in expert_layers(config)]
    return frozenset(name for plan in plans for group in (*plan.gate_up, *plan.gate_up_bias) for name in group)


def _rows(array: npt.NDArray[Any], first: int, stop: int, num_halves: int) -> npt.NDArray[Any]:
    start, end = first // num_halves, stop // num_halves
    parts = [half[start:end] for half in np.split(array, num_halves)]
    return parts[0] if num_halves == 1 else np.concatenate(parts)


def _copied(array: npt.NDArray[Any], shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """With zeros behind it, up to this shape. They are zeros in every way of storing weights."""
    num_bytes = prod(shape) * array.itemsize
    memory = np.zeros(num_bytes + _LINE_BYTES, np.uint8)
    first = -memory.ctypes.data % _LINE_BYTES
    copy = memory[first : first + num_bytes].view(array.dtype).reshape(shape)
    copy[tuple(slice(size) for size in array.shape)] = array
    return copy
