"""What a slice has of the tensors of a checkpoint.

Owns the cutting: along which dimension follows from the shapes that the plans of the whole and of the slice give a name,
never from a tensor. Parts are copies, so that nothing keeps the whole.
"""

from __future__ import annotations

import numpy as np

from relevo.core.errors import UnsupportedModel
from relevo.core.model import ModelConfig
from relevo.engine.models.slices import Slice
from relevo.engine.models.weight_plan import Shapes, expert_layers, expert_plan, weight_groups
from relevo.engine.ops.formats import BLOCK_FORMATS
from relevo.engine.ops.protocol import HostTensor


class SliceTensors:
    def __init__(self, config: ModelConfig, part: Slice) -> None:
        """`config`: of the whole model."""
        self._whole, self._own, self._slice = shapes_of(config), shapes_of(part.config), part
        self._paired = _paired_names(config)

    def is_cut(self, name: str) -> bool:
        return self._own[name] != self._whole[name]

    def part(self, name: str, tensor: HostTensor) -> HostTensor:
        """Of a tensor that has the shape of the whole. Raises UnsupportedModel if a cut is inside a block."""
        whole, own = self._whole[name], self._own[name]
        if whole == own:
            return tensor
        axis = next(axis for axis, size in enumerate(whole) if size != own[axis])
        number = self._slice.number * (whole[axis] // own[axis]) // self._slice.num_slices
        if axis == 0:
            return _rows(tensor, number, own[0], num_halves=2 if name in self._paired else 1)
        return _columns(name, tensor, number, own[axis])


def shapes_of(config: ModelConfig) -> Shapes:
    return {name: shape for group in weight_groups(config) for name, shape in group.items()}


def _paired_names(config: ModelConfig) -> frozenset[str]:
    """Tensors that are gates and the values beside them, one half after the other."""
    if config.experts is None or len(config.experts.projections) > 2:
        return frozenset()
    plans = [expert_plan(config, index) for index in expert_layers(config)]
    return frozenset(name for plan in plans for group in (*plan.gate_up, *plan.gate_up_bias) for name in group)


def _rows(tensor: HostTensor, number: int, count: int, num_halves: int) -> HostTensor:
    halves = np.split(tensor.array, num_halves)
    first, size = number * (count // num_halves), count // num_halves
    return HostTensor(np.concatenate([half[first : first + size] for half in halves]), tensor.dtype)


def _columns(name: str, tensor: HostTensor, number: int, count: int) -> HostTensor:
    block = BLOCK_FORMATS.get(tensor.dtype)
    if block is None:
        return HostTensor(tensor.array[:, number * count : (number + 1) * count].copy(), tensor.dtype)
    if count % block.elements:
        raise UnsupportedModel(
            f"tensor {name} is stored as {tensor.dtype}, whose blocks of {block.elements} do not end where a slice of "
            f"{count} columns ends; choose --dtype bfloat16, or a tensor parallel size of 1"
        )
    width = count // block.elements * block.stored_bytes
    return HostTensor(tensor.array[:, number * width : (number + 1) * width].copy(), tensor.dtype)
