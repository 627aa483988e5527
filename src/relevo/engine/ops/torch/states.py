"""States of sequences in the blocks of a cache, and the gated delta rule that reads and writes them.

Owns where a layer's state lies: so many whole layers in each block, a float32 matrix [Hv, dk, dv] and, behind it, the
last inputs of the convolution [kernel - 1, C] in the activations' dtype. Tokens are computed one after the other and in
float32, so that the cut of a row into steps changes no bit. Source: Gated Delta Networks (arXiv:2412.06464).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch

from relevo.core.errors import UnsupportedModel
from relevo.core.kv import KVLayout
from relevo.engine.inputs import StepInputs
from relevo.engine.ops.cache_groups import layer_places, state_groups
from relevo.engine.ops.protocol import DeltaRule

_LINEAR_FROM = 20.0  # softplus, as in torch
_NORM_EPS = 1e-6  # of queries and keys


class StateMemory:
    def __init__(self, layout: KVLayout, blocks: torch.Tensor) -> None:
        """`blocks`: [N, elements of a block]."""
        groups = state_groups(layout)
        self._bytes = blocks.view(torch.uint8)
        self._places = layer_places(groups)
        self._state_bytes = [group.state_bytes for group in groups]

    def read(
        self, inputs: StepInputs, layer: int, rows: Sequence[int], shapes: Sequence[tuple[tuple[int, ...], torch.dtype]]
    ) -> list[torch.Tensor]:
        """Parts of the rows' states, each [R, *shape]."""
        blocks, first = self._find(inputs, layer, rows)
        parts = []
        for shape, dtype in shapes:
            end = first + prod(shape) * dtype.itemsize
            parts.append(self._bytes[blocks, first:end].view(dtype).view(len(rows), *shape))
            first = end
        return parts

    def write(self, inputs: StepInputs, layer: int, rows: Sequence[int], parts: Sequence[torch.Tensor]) -> None:
        blocks, first = self._find(inputs, layer, rows)
        for part in parts:
            stored = part.contiguous().view(len(rows), -1).view(torch.uint8)
            self._bytes[blocks, first : first + stored.shape[1]] = stored
            first += stored.shape[1]

    def _find(self, inputs: StepInputs, layer: int, rows: Sequence[int]) -> tuple[torch.Tensor, int]:
        group, place = self._places[layer]
        each = self._bytes.shape[1] // self._state_bytes[group]  # whole layers in a block
        blocks = inputs.state_blocks[group][list(rows), place // each]
        return torch.from_numpy(blocks).to(self._bytes.device), place % each * self._state_bytes[group]


def gated_delta(
    memory: StateMemory, inputs: StepInputs, x: torch.Tensor, gates: torch.Tensor, layer: int, rule: DeltaRule
) -> torch.Tensor:
    """x [T, C], gates [T, 2 * Hv] -> [T, V]. Rows of one token are computed together, longer ones apart. Raises
    UnsupportedModel for some of a state's heads."""
    if rule.sizes.num_key_heads != rule.num_state_heads:
        raise UnsupportedModel("a part of a state is not implemented on the torch backend; use the native one")
    firsts, ends = inputs.row_first_token[:-1].tolist(), inputs.row_first_token[1:].tolist()
    short = [row for row, (first, end) in enumerate(zip(firsts, ends, strict=True)) if end - first == 1]
    together = [[row] for row in range(len(firsts)) if ends[row] - firsts[row] > 1] + ([short] if short else [])
    out = x.new_empty(len(x), rule.sizes.num_values)
    for rows in together:
        length = ends[rows[0]] - firsts[rows[0]]
        tokens = torch.tensor([range(firsts[row], firsts[row] + length) for row in rows], device=x.device)
        is_fresh = torch.from_numpy(inputs.context_lengths[rows] == length).to(x.device)
        out[tokens.flatten()] = _rows_of(memory, inputs, layer, rows, is_fresh, x[tokens], gates[tokens], rule)
    return out


def _rows_of(
    memory: StateMemory,
    inputs: StepInputs,
    layer: int,
    rows: Sequence[int],
    is_fresh: torch.Tensor,
    x: torch.Tensor,
    gates: torch.Tensor,
    rule: DeltaRule,
) -> torch.Tensor:
    """x [R, n, C], gates [R, n, 2 * Hv] -> [R * n, V]"""
    sizes, (num_rows, length, width) = rule.sizes, x.shape
    state_shape = (sizes.num_value_heads, sizes.key_size, sizes.value_size)
    shapes = ((state_shape, torch.float32), ((sizes.kernel_size - 1, width), x.dtype))
    state, before = memory.read(inputs, layer, rows, shapes)
    state = state.masked_fill(is_fresh[:, None, None, None], 0.0)
    seen = torch.cat((before.masked_fill(is_fresh[:, None, None], 0.0), x), dim=1)  # [R, kernel - 1 + n, C]
    kernel = rule.convolution.float()[:, 0]  # [C, kernel]
    mixed = seen[:, :length].float() * kernel[:, 0]
    for tap in range(1, sizes.kernel_size):
        mixed = mixed + seen[:, tap : tap + length].float() * kernel[:, tap]
    mixed = mixed.to(x.dtype).float()
    convolved = (mixed * _sigmoid(mixed)).to(x.dtype).float()
    q, k, v = convolved.split((sizes.num_keys, sizes.num_keys, sizes.num_values), dim=-1)
    shared_by = sizes.num_value_heads // sizes.num_key_heads
    q, k = (_unit(each.unflatten(-1, (-1, sizes.key_size))) for each in (q, k))
    q = (q * sizes.key_size**-0.5).repeat_interleave(shared_by, dim=2)[..., None]  # [R, n, Hv, dk, 1]
    k = k.repeat_interleave(shared_by, dim=2)[..., None]
    v = v.unflatten(-1, (-1, sizes.value_size))  # [R, n, Hv, dv]
    written, kept = gates.chunk(2, dim=-1)
    beta = _sigmoid(written.float()).to(x.dtype).float()[..., None]
    decay = (rule.decay * _softplus(kept.float() + rule.decay_bias)).exp()[..., None, None]
    places = sizes.output_heads
    out = torch.empty_like(v)
    for token in range(length):
        state = state * decay[:, token]
        delta = (v[:, token] - (state * k[:, token]).sum(dim=-2)) * beta[:, token]
        state = state + k[:, token] * delta[..., None, :]
        out[:, token, places] = (state * q[:, token]).sum(dim=-2)
    memory.write(inputs, layer, rows, (state, seen[:, length:]))
    return out.to(x.dtype).reshape(num_rows * length, sizes.num_values)


def _unit(x: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt((x * x).sum(dim=-1, keepdim=True) + _NORM_EPS)


def _sigmoid(x: torch.Tensor) -> torch.Tensor:
    """torch's own has other bits in the last elements of a tensor than before them."""
    return 1.0 / (1.0 + (-x).exp())


def _softplus(x: torch.Tensor) -> torch.Tensor:
    """Of steps that torch rounds alike wherever an element stands."""
    return torch.where(x > _LINEAR_FROM, x, x.exp().log1p())
