"""What becomes of a checkpoint's weights before a backend takes them: norms that are stored as their distance from one,
heads whose rows are in another order.

Owns these changes, which follow from the config alone, so that every format of files has them the same.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from relevo.core.model import ModelConfig
from relevo.engine.models.delta_weights import DECAY, rows_of_delta
from relevo.engine.models.weight_plan import has_offset
from relevo.engine.ops.protocol import HostTensor


def as_computed(config: ModelConfig, name: str, tensor: HostTensor) -> HostTensor:
    """The weight that the decoder's operations take."""
    if config.delta is not None and (rows := rows_of_delta(config.delta, name)) is not None:
        tensor = HostTensor(tensor.array[rows], tensor.dtype)
    if config.delta is not None and config.delta.files.has_logarithms and name.endswith(DECAY):
        return HostTensor(-np.exp(tensor.floats()), "float32")
    if config.gated_attention and ".q_proj." in name:
        return HostTensor(_gates_last(tensor.array, config.num_heads), tensor.dtype)
    if config.norm_offset and has_offset(name):
        return HostTensor(tensor.floats() + np.float32(config.norm_offset), "float32")
    if config.interleaved_rope and ".q_proj." in name:
        return HostTensor(in_halves(tensor.array, config.num_heads), tensor.dtype)
    if config.interleaved_rope and ".k_proj." in name:
        return HostTensor(in_halves(tensor.array, config.num_kv_heads), tensor.dtype)
    return tensor


def in_halves(array: npt.NDArray[Any], num_heads: int) -> npt.NDArray[Any]:
    """Rows (2i, 2i + 1) of a head become its rows (i, i + D / 2): scores stay, and rotation pairs them as it does."""
    paired = array.reshape(num_heads, len(array) // num_heads // 2, 2, *array.shape[1:])
    return paired.swapaxes(1, 2).reshape(array.shape)


def _gates_last(array: npt.NDArray[Any], num_heads: int) -> npt.NDArray[Any]:
    """Rows of a query and of its gate lie together by head; then queries of all heads come before gates of all."""
    paired = array.reshape(num_heads, 2, len(array) // num_heads // 2, *array.shape[1:])
    return np.ascontiguousarray(paired.swapaxes(0, 1)).reshape(array.shape)
