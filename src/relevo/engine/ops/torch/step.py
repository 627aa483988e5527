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
from relevo.engine.ops.protocol import Reach

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
    key_runs: torch.Tensor  # [R * K * M] int64, places of runs of S keys in the first layer of a block
    mask: torch.Tensor  # [R, 1, Q, C], 0 or -inf


@dataclass(frozen=True, slots=True)
class BatchedRows:
    """A batch whatever the KV group: each lays its keys elsewhere."""

    rows: list[int]
    ranges: list[tuple[int, int]]  # of each, the blocks that its queries can see: [first, last)
    first_token: int
    token_indices: torch.Tensor | None
    num_queries: int
    mask: torch.Tensor

    def over(self, block_tables: Int64Array, cache: PlacesKeys) -> AttentionBatch:
        """With keys where the tables of a group [B, M] say."""
        width = max(last - first for first, last in self.ranges)
        tables = np.empty((len(self.rows), width), dtype=np.int64)
        for index, (row, (first, last)) in enumerate(zip(self.rows, self.ranges, strict=True)):
            tables[index] = block_tables[row, first]  # padding is masked, and reads no other row's numbers
            tables[index, : last - first] = block_tables[row, first:last]
        return AttentionBatch(
            first_token=self.first_token,
            token_indices=self.token_indices,
            num_rows=len(self.rows),
            num_queries=self.num_queries,
            key_runs=torch.from_numpy(cache.runs(tables)).to(cache.device),
            mask=self.mask,
        )


class TorchStep:
    """Index tensors and masks on the cache's device."""

    def __init__(self, inputs: StepInputs, cache: PlacesKeys, dtype: torch.dtype, reach: Reach) -> None:
        """`reach`: of layers whose rule says nothing of it."""
        device = cache.device
        self.token_ids = torch.from_numpy(inputs.token_ids).to(device)  # [T]
        self.positions = torch.from_numpy(inputs.positions.astype(np.float32)).to(device)  # [T] float32
        slots = [cache.slots(blocks, inputs.offset_of_token) for blocks in inputs.block_of_token]
        # Of each KV group [T * K] int64: places of each token's keys in the first layer of a block.
        self.slots = [torch.from_numpy(each).to(device) for each in slots]
        self.inputs, self._cache, self._dtype, self._reach = inputs, cache, dtype, reach
        self._rows: dict[Reach, list[BatchedRows]] = {}
        self._batches: dict[tuple[Reach, int], tuple[AttentionBatch, ...]] = {}

    def batches_of(self, reach: Reach, group: int) -> tuple[AttentionBatch, ...]:
        """Of layers of a KV group that see as far; made once for all of them."""
        reach = self._reach if reach == Reach() else reach
        if (reach, group) not in self._batches:
            tables = self.inputs.block_tables[group]
            self._batches[reach, group] = tuple(rows.over(tables, self._cache) for rows in self._rows_of(reach))
        return self._batches[reach, group]

    def _rows_of(self, reach: Reach) -> list[BatchedRows]:
        if reach not in self._rows:
            together = _rows_together(self.inputs, reach)
            self._rows[reach] = [
                _batched(rows, self.inputs, self._cache.device, self._dtype, reach) for rows in together
            ]
        return self._rows[reach]


def _rows_together(inputs: StepInputs, reach: Reach) -> list[list[int]]:
    lengths = np.diff(inputs.row_first_token)
    together: dict[int, list[int]] = defaultdict(list)
    alone: list[list[int]] = []
    for row in range(inputs.num_rows):
        if lengths[row] == 1:
            first, last = _block_range(inputs, row, 1, reach)
            together[(last - first - 1).bit_length()].append(row)
        else:
            alone.append([row])
    return [*alone, *together.values()]


def _block_range(inputs: StepInputs, row: int, num_queries: int, reach: Reach) -> tuple[int, int]:
    """Blocks of the row's table that its queries can see: [first, last)."""
    context = int(inputs.context_lengths[row])
    last = -(-context // inputs.block_size)
    return reach.first_key(context - num_queries) // inputs.block_size, last


def _batched(
    rows: list[int], inputs: StepInputs, device: torch.device, dtype: torch.dtype, reach: Reach
) -> BatchedRows:
    first_tokens = inputs.row_first_token[rows]
    num_queries = int(inputs.row_first_token[rows[0] + 1] - first_tokens[0])
    ranges = [_block_range(inputs, row, num_queries, reach) for row in rows]
    width = max(last - first for first, last in ranges)
    first_keys = np.array([first for first, _ in ranges]) * inputs.block_size
    consecutive = len(rows) == 1 or bool(np.all(np.diff(first_tokens) == 1))
    return BatchedRows(
        rows=rows,
        ranges=ranges,
        first_token=int(first_tokens[0]),
        token_indices=None if consecutive else torch.from_numpy(first_tokens).to(device),
        num_queries=num_queries,
        mask=_mask(
            torch.from_numpy(inputs.context_lengths[rows]).to(device),
            torch.from_numpy(first_keys).to(device),
            num_queries,
            width * inputs.block_size,
            reach,
            dtype,
        ),
    )


def _mask(
    contexts: torch.Tensor, first_keys: torch.Tensor, num_queries: int, width: int, reach: Reach, dtype: torch.dtype
) -> torch.Tensor:
    """contexts [R]: positions up to and including the last query's own; first_keys [R]. Returns [R, 1, Q, width]."""
    device = contexts.device
    query = (contexts[:, None] - num_queries + torch.arange(num_queries, device=device))[:, :, None]  # [R, Q, 1]
    key = (first_keys[:, None] + torch.arange(width, device=device))[:, None]  # [R, 1, width]
    hidden = key > query
    if reach.window:
        hidden |= key <= query - reach.window
    if reach.chunk:
        hidden |= key < query // reach.chunk * reach.chunk
    mask = torch.zeros(hidden.shape, dtype=dtype, device=device).masked_fill_(hidden, float("-inf"))
    return mask[:, None]
