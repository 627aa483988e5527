"""What a slice has of the tensors of a checkpoint.

Owns the cutting: along which dimension follows from the shapes that the plans of whole and slice give a name,
never from a tensor. Parts are copies, so that nothing keeps the whole, and all begin at the same place of a cache line:
torch's products choose their loops, and so their bits, by that too.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from relevo.core.errors import UnsupportedModel
from relevo.core.model import ModelConfig
from relevo.engine.models.slices import Slice
from relevo.engine.models.weight_plan import Shapes, expert_layers, expert_plan, weight_groups
from relevo.engine.ops.formats import BLOCK_FORMATS
from relevo.engine.ops.protocol import HostTensor

_LINE_BYTES = 64


class SliceTensors:
    def __init__(self, config: ModelConfig, part: Slice) -> None:
        """`config`: of the whole model."""
        self._whole, self._own, self._slice = shapes_of(config), shapes_of(part.config), part
        self._paired = _paired_names(config)

    def is_cut(self, name: str) -> bool:
        return self._own[name] != self._whole[name]

    def part(self, name: str, tensor: HostTensor) -> HostTensor:
        """Of a tensor that has the shape of the whole. Raises UnsupportedModel if a cut is inside a block."""
        if self._slice.is_whole:
            return tensor
        whole, own = self._whole[name], self._own[name]
        if whole == own:
            return HostTensor(_copied(tensor.array), tensor.dtype)
        axis = next(axis for axis, size in enumerate(whole) if size != own[axis])
        number = self._slice.number * (whole[axis] // own[axis]) // self._slice.num_slices
        if axis == 0:
            rows = _rows(tensor.array, number, own[0], num_halves=2 if name in self._paired else 1)
            return HostTensor(_copied(rows), tensor.dtype)
        width = _stored_width(name, tensor.dtype, own[axis])
        return HostTensor(_copied(tensor.array[:, number * width : (number + 1) * width]), tensor.dtype)


def shapes_of(config: ModelConfig, stage: range | None = None) -> Shapes:
    """`stage`: of these layers only; None: of all."""
    return {name: shape for group in weight_groups(config, stage) for name, shape in group.items()}


def _paired_names(config: ModelConfig) -> frozenset[str]:
    """Tensors that are gates and the values beside them, one half after the other."""
    if config.experts is None or len(config.experts.projections) > 2:
        return frozenset()
    plans = [expert_plan(config, index) for index in expert_layers(config)]
    return frozenset(name for plan in plans for group in (*plan.gate_up, *plan.gate_up_bias) for name in group)


def _rows(array: npt.NDArray[Any], number: int, count: int, num_halves: int) -> npt.NDArray[Any]:
    size = count // num_halves
    parts = [half[number * size : (number + 1) * size] for half in np.split(array, num_halves)]
    return parts[0] if num_halves == 1 else np.concatenate(parts)


def _stored_width(name: str, dtype: str, count: int) -> int:
    """Of so many columns of a matrix, as they are stored."""
    block = BLOCK_FORMATS.get(dtype)
    if block is None:
        return count
    if count % block.elements:
        raise UnsupportedModel(
            f"tensor {name} is stored as {dtype}, whose blocks of {block.elements} do not end where a slice of {count} "
            "columns ends; choose --dtype bfloat16, or a tensor parallel size of 1"
        )
    return count // block.elements * block.stored_bytes


def _copied(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    memory = np.empty(array.nbytes + _LINE_BYTES, np.uint8)
    first = -memory.ctypes.data % _LINE_BYTES
    copy = memory[first : first + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy
