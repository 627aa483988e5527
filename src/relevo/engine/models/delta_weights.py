"""The weights of layers with a gated delta rule as its operations take them.

Owns the order of rows: of all heads queries, keys, values, then what gates the output; how much each head writes, then
how much it keeps. Some files have them so, others by key head, or with the value heads of a key head apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from relevo.core.model import GatedDelta, ModelConfig
from relevo.engine.models.weight_plan import delta_plan
from relevo.engine.ops.protocol import Buffer

_INPUTS, _GATES = "linear_attn.in_proj_qkvz.weight", "linear_attn.in_proj_ba.weight"
DECAY = "linear_attn.A_log"
_WITH_VALUES = ("linear_attn.in_proj_qkv.weight", "linear_attn.conv1d.weight")
# What is normed and gated keeps the order of value heads of a file whose model is not cut, and so do the columns of the
# output's matrix, which end in the middle of blocks of quantised weights.
_OF_VALUE_HEADS = tuple(f"linear_attn.{name}" for name in ("in_proj_b.weight", "in_proj_a.weight", "dt_bias", "A_log"))
_OUTPUT_GATE = "linear_attn.in_proj_z.weight"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaWeights:
    """C what is convolved, V all values, Hv value heads."""

    inputs: Buffer  # [C + V, E]
    gates: Buffer  # [2 * Hv, E]
    convolution: Buffer  # [C, 1, kernel]
    decay: Buffer  # [Hv] float32, minus the exponential of what checkpoints have
    decay_bias: Buffer  # [Hv] float32
    norm: Buffer  # [value size]


def delta_weights(config: ModelConfig, index: int, ready: Mapping[str, Buffer]) -> DeltaWeights | None:
    """None: the layer has none."""
    roles = {role: ready[next(iter(group))] for role, group in delta_plan(config, index).items()}
    return DeltaWeights(**roles) if roles else None


def rows_of_delta(delta: GatedDelta, name: str) -> npt.NDArray[np.intp] | None:
    """Where rows are found in a file; None: where they are taken."""
    shared_by, files = delta.num_value_heads // delta.num_key_heads, delta.files
    if name.endswith(_INPUTS) and files.has_inputs_by_head:
        values = shared_by * delta.value_size
        return _by_kind(delta.num_key_heads, (delta.key_size, delta.key_size, values, values))
    if name.endswith(_GATES) and files.has_gates_by_head:
        return _by_kind(delta.num_key_heads, (shared_by, shared_by))
    if files.is_tiled and name.endswith(_WITH_VALUES):
        keys = np.arange(2 * delta.num_keys)
        return np.concatenate((keys, len(keys) + _neighbours(delta, delta.value_size)))
    return _neighbours(delta, 1) if files.is_tiled and name.endswith(_OF_VALUE_HEADS) else None


def parts_of_delta(delta: GatedDelta, name: str) -> tuple[npt.NDArray[np.intp], ...]:
    """Where the rows of each part of a tensor are found in a file, of which every slice has its part: queries, keys and
    values; of one thing one. Empty: they lie as they are cut."""
    num_keys, files = delta.num_keys, delta.files
    if name.endswith(_WITH_VALUES):
        values = _neighbours(delta, delta.value_size) if files.is_tiled else np.arange(delta.num_values)
        return np.arange(num_keys), np.arange(num_keys, 2 * num_keys), 2 * num_keys + values
    if files.is_tiled and name.endswith(_OUTPUT_GATE):
        return (_neighbours(delta, delta.value_size),)
    return (_neighbours(delta, 1),) if files.is_tiled and name.endswith(_OF_VALUE_HEADS) else ()


def _neighbours(delta: GatedDelta, width: int) -> npt.NDArray[np.intp]:
    """Rows of value heads, `width` of each, in the order in which neighbours share a key head."""
    tiles = np.arange(delta.num_value_heads * width).reshape(-1, delta.num_key_heads, width)
    return tiles.swapaxes(0, 1).ravel()


def _by_kind(num_heads: int, widths: tuple[int, ...]) -> npt.NDArray[np.intp]:
    """Of rows that lie by head, and in a head by kind."""
    heads, first, rows = np.arange(num_heads)[:, None] * sum(widths), 0, []
    for width in widths:
        rows.append((heads + first + np.arange(width)).ravel())
        first += width
    return np.concatenate(rows)
