"""What a slice has of the tensors of a checkpoint.

Owns the cutting: along which dimension follows from the shapes that the plans of whole and slice give a name,
never from a tensor. Parts are copies, so that nothing keeps the whole, and all begin at the same place of a cache line:
torch's products choose their loops, and so their bits, by that too.
"""

from __future__ import annotations

from math import prod
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
        self._whole, self._own, self._slice, self._config = shapes_of(config), shapes_of(part.config), part, config
        self._paired = _paired_names(config)

    def is_cut(self, name: str) -> bool:
        return self._own[name] != self._whole[name]

    def part(self, name: str, tensor: HostTensor) -> HostTensor:
        """Of a tensor that has the shape of the whole. Raises UnsupportedModel if a cut is inside a block."""
        if self._slice.is_whole:
            return tensor
        whole, own = self._whole[name], self._own[name]
        if whole == own:
            return HostTensor(_copied(tensor.array, tensor.array.shape), tensor.dtype)
        axis = next(axis for axis, size in enumerate(whole) if size != own[axis])
        first, stop = self._place(name, whole[axis], own[axis])
        if axis == 0:
            rows = _rows(tensor.array, first, stop, num_halves=2 if name in self._paired else 1)
            return HostTensor(_copied(rows, (own[0], *rows.shape[1:])), tensor.dtype)
        start, end, width = (_stored_width(name, tensor.dtype, columns) for columns in (first, stop, own[axis]))
        columns = tensor.array[:, start:end]
        return HostTensor(_copied(columns, (len(columns), width)), tensor.dtype)

    def _place(self, name: str, whole: int, own: int) -> tuple[int, int]:
        """The slice's part of a dimension: first, and the one after the last. Of heads it may be less than `own`."""
        config, part = self._config, self._slice
        if ".self_attn." not in name:
            first = part.number * whole // part.num_slices
        elif name.rsplit(".", 2)[-2] in ("k_proj", "v_proj"):
            first = (part.first_kv_head or 0) * (whole // config.num_kv_heads)
        else:
            each = whole // config.num_heads
            return part.heads.start * each, part.heads.stop * each
        return first, first + own


def shapes_of(config: ModelConfig, stage: range | None = None) -> Shapes:
    """`stage`: of these layers only; None: of all."""
    return {name: shape for group in weight_groups(config, stage) for name, shape in group.items()}


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


def _stored_width(name: str, dtype: str, count: int) -> int:
    """Of the first so many columns of a matrix, as they are stored."""
    block = BLOCK_FORMATS.get(dtype)
    if block is None:
        return count
    if count % block.elements:
        raise UnsupportedModel(
            f"tensor {name} is stored as {dtype}, whose blocks of {block.elements} do not end at column {count}, where "
            "a slice ends; choose --dtype bfloat16, or leave --tensor-parallel-size out"
        )
    return count // block.elements * block.stored_bytes


def _copied(array: npt.NDArray[Any], shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """With zeros behind it, up to this shape. They are zeros in every way of storing weights."""
    num_bytes = prod(shape) * array.itemsize
    memory = np.zeros(num_bytes + _LINE_BYTES, np.uint8)
    first = -memory.ctypes.data % _LINE_BYTES
    copy = memory[first : first + num_bytes].view(array.dtype).reshape(shape)
    copy[tuple(slice(size) for size in array.shape)] = array
    return copy
