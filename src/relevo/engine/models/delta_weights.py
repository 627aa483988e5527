"""The weights of layers with a gated delta rule as its operations take them.

Owns the order of rows: of all heads queries, keys, values, then what gates the output; how much each head writes, then
how much it keeps. Checkpoints of one family have them so, those of another by key head.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaWeights:
    """C what is convolved, V all values, Hv value heads."""

    inputs: Buffer  # [C + V, E]
    gates: Buffer  # [2 * Hv, E]
    convolution: Buffer  # [C, 1, kernel]
    decay: Buffer  # [Hv] float32, its logarithm
    decay_bias: Buffer  # [Hv] float32
    norm: Buffer  # [value size]


def delta_weights(config: ModelConfig, index: int, ready: Mapping[str, Buffer]) -> DeltaWeights | None:
    """None: the layer has none."""
    roles = {role: ready[next(iter(group))] for role, group in delta_plan(config, index).items()}
    return DeltaWeights(**roles) if roles else None


def rows_of_delta(delta: GatedDelta, name: str) -> npt.NDArray[np.intp] | None:
    """Where rows are found in a checkpoint; None: where they are taken."""
    if not delta.is_interleaved:
        return None
    shared_by = delta.num_value_heads // delta.num_key_heads
    if name.endswith(_INPUTS):
        values = shared_by * delta.value_size
        return _by_kind(delta.num_key_heads, (delta.key_size, delta.key_size, values, values))
    if name.endswith(_GATES):
        return _by_kind(delta.num_key_heads, (shared_by, shared_by))
    return None


def _by_kind(num_heads: int, widths: tuple[int, ...]) -> npt.NDArray[np.intp]:
    """Of rows that lie by head, and in a head by kind."""
    heads, first, rows = np.arange(num_heads)[:, None] * sum(widths), 0, []
    for width in widths:
        rows.append((heads + first + np.arange(width)).ravel())
        first += width
    return np.concatenate(rows)
