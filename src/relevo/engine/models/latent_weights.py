"""The weights of latent attention as its operations take them.

Owns what is done to rows before a backend has them: rotated elements are put from pairs into halves, queries are sorted
into those that are rotated and those that are not, and the matrix from the latent to keys and values becomes one matrix
per head for each side. That matrix is never in integers: its keys' side is transposed, which quantised rows are not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from relevo.core.model import LatentAttention, ModelConfig
from relevo.engine.models.weight_plan import KV_UP, latent_plan
from relevo.engine.ops.protocol import Buffer, HostTensor, Ops


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentWeights:
    """Q query rank, L latent, R rotated, N not rotated, V value size. None: queries have no latent."""

    query_down: Buffer | None  # [Q, E]
    query_down_bias: Buffer | None
    query_norm: Buffer | None  # [Q]
    query: Buffer  # [H * N + H * R, Q or E]
    down: Buffer  # [L + R, E]
    down_bias: Buffer | None
    latent_norm: Buffer  # [L]
    heads: Buffer  # two: of each head from N to L, and from L to V


def latent_weights(config: ModelConfig, index: int, ready: Mapping[str, Buffer]) -> LatentWeights:
    roles = latent_plan(config, index)
    return LatentWeights(**{role: ready[next(iter(group))] if group else None for role, group in roles.items()})


def pack(config: ModelConfig, name: str, tensor: HostTensor, ops: Ops) -> Buffer | None:
    """Of a tensor whose rows are not taken as they are; None: they are."""
    latent = config.latent
    if latent is None:
        return None
    if name.endswith(KV_UP):
        return _heads(config.num_heads, latent, tensor, ops)
    if name.endswith(("self_attn.q_proj.weight", "self_attn.q_b_proj.weight")):
        return ops.weight([HostTensor(tensor.array[_query_rows(config.num_heads, latent)], tensor.dtype)])
    if ".self_attn.kv_a_proj_with_mqa." in name:
        return ops.weight([HostTensor(tensor.array[_down_rows(latent)], tensor.dtype)])
    return None


def _heads(num_heads: int, latent: LatentAttention, tensor: HostTensor, ops: Ops) -> tuple[Buffer, Buffer]:
    apart = tensor.array.reshape(num_heads, latent.nope_size + latent.value_size, latent.latent_size)
    keys, values = apart[:, : latent.nope_size].swapaxes(1, 2), apart[:, latent.nope_size :]
    return ops.head_weights(HostTensor(keys, tensor.dtype)), ops.head_weights(HostTensor(values, tensor.dtype))


def _query_rows(num_heads: int, latent: LatentAttention) -> npt.NDArray[np.intp]:
    """Where the rows are found: parts that are not rotated, all heads, then those that are."""
    heads = np.arange(num_heads)[:, None] * (latent.nope_size + latent.rope_size)
    return np.concatenate(
        ((heads + np.arange(latent.nope_size)).ravel(), (heads + latent.nope_size + _halves(latent)).ravel())
    )


def _down_rows(latent: LatentAttention) -> npt.NDArray[np.intp]:
    return np.concatenate((np.arange(latent.latent_size), latent.latent_size + _halves(latent)))


def _halves(latent: LatentAttention) -> npt.NDArray[np.intp]:
    order = np.arange(latent.rope_size)
    return np.concatenate((order[::2], order[1::2])) if latent.is_interleaved else order
