"""What one step's attention needs, computed once per step instead of once per layer.

Owns which rows are attended together, the places of their keys in the cache, and the masks. Rows of one token with a
similar context (the same power of two of blocks) form one padded batch; a longer row is a batch of its own.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from relevo.engine.inputs import StepInputs

Int64Array = npt.NDArray[np.int64]


class PlacesKeys(Protocol):
    """What a cache says of where its numbers lie."""

    device: torch.device

    def slots(self, blocks: Int64Array, offsets: Int64Array) -> Int64Array: ...

    def runs(self, tables: Int64Array) -> Int64Array: ...


@dataclass(frozen=True, slots=True)
class AttentionBatch:
    """R rows with Q query tokens each, over at most M blocks, C = M * S."""

    first_token: int  # of the step; used when `token_indices` is None: R * Q consecutive tokens
    token_indices: torch.Tensor | None  # [R] int64
    num_rows: int
    num_queries: int
    key_runs: torch.Tensor  # [R * K * M] int64, places of runs of S keys in layer 0
    mask: torch.Tensor  # [R, 1, Q, C], 0 or -inf


@dataclass(frozen=True, slots=True)
class TorchStep:
    token_ids: torch.Tensor  # [T]
    positions: torch.Tensor  # [T] float32
    slots: torch.Tensor  # [T * K] int64, places of each token's keys in layer 0
    batches: tuple[AttentionBatch, ...]


def place_step(inputs: StepInputs, cache: PlacesKeys, dtype: torch.dtype, sliding_window: int | None) -> TorchStep:
    """Index tensors and masks on the cache's device."""
    device = cache.device
    return TorchStep(
        token_ids=torch.from_numpy(inputs.token_ids).to(device),
        positions=torch.from_numpy(inputs.positions.astype(np.float32)).to(device),
        slots=torch.from_numpy(cache.slots(inputs.block_of_token, inputs.offset_of_token)).to(device),
        batches=tuple(
            _place_batch(rows, inputs, cache, dtype, sliding_window) for rows in _batched_rows(inputs, sliding_window)
        ),
    )


def _batched_rows(inputs: StepInputs, sliding_window: int | None) -> list[list[int]]:
    lengths = np.diff(inputs.row_first_token)
    together: dict[int, list[int]] = defaultdict(list)
    alone: list[list[int]] = []
    for row in range(inputs.num_rows):
        if lengths[row] == 1:
            first, last = _block_range(inputs, row, 1, sliding_window)
            together[(last - first - 1).bit_length()].append(row)
        else:
            alone.append([row])
    return [*alone, *together.values()]


def _block_range(inputs: StepInputs, row: int, num_queries: int, sliding_window: int | None) -> tuple[int, int]:
    """Blocks of the row's table that its queries can see: [first, last)."""
    context = int(inputs.context_lengths[row])
    last = -(-context // inputs.block_size)
    if sliding_window is None:
        return 0, last
    return max(0, context - num_queries + 1 - sliding_window) // inputs.block_size, last


def _place_batch(
    rows: list[int], inputs: StepInputs, cache: PlacesKeys, dtype: torch.dtype, sliding_window: int | None
) -> AttentionBatch:
    first_tokens = inputs.row_first_token[rows]
    num_queries = int(inputs.row_first_token[rows[0] + 1] - first_tokens[0])
    ranges = [_block_range(inputs, row, num_queries, sliding_window) for row in rows]
    width = max(last - first for first, last in ranges)
    tables = np.empty((len(rows), width), dtype=np.int64)
    for index, (row, (first, last)) in enumerate(zip(rows, ranges, strict=True)):
        tables[index] = inputs.block_tables[row, first]  # padding is masked, and reads no other row's numbers
        tables[index, : last - first] = inputs.block_tables[row, first:last]
    first_keys = np.array([first for first, _ in ranges]) * inputs.block_size
    consecutive = len(rows) == 1 or bool(np.all(np.diff(first_tokens) == 1))
    device = cache.device
    return AttentionBatch(
        first_token=int(first_tokens[0]),
        token_indices=None if consecutive else torch.from_numpy(first_tokens).to(device),
        num_rows=len(rows),
        num_queries=num_queries,
        key_runs=torch.from_numpy(cache.runs(tables)).to(device),
        mask=_mask(
            torch.from_numpy(inputs.context_lengths[rows] - first_keys).to(device),
            num_queries,
            width * inputs.block_size,
            sliding_window,
            dtype,
        ),
    )


def _mask(
    num_keys: torch.Tensor, num_queries: int, width: int, sliding_window: int | None, dtype: torch.dtype
) -> torch.Tensor:
    """num_keys [R]: keys up to and including the last query's own. Returns [R, 1, Q, width]."""
    device = num_keys.device
    query = num_keys[:, None] - num_queries + torch.arange(num_queries, device=device)  # [R, Q], place among the keys
    key = torch.arange(width, device=device)
    hidden = key > query[:, :, None]
    if sliding_window is not None:
        hidden |= key <= query[:, :, None] - sliding_window
    mask = torch.zeros(hidden.shape, dtype=dtype, device=device).masked_fill_(hidden, float("-inf"))
    return mask[:, None]
