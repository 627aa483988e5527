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
    key_runs: torch.Tensor  # [R * K * M] int64, places of runs of S keys in layer 0
    mask: torch.Tensor  # [R, 1, Q, C], 0 or -inf


class TorchStep:
    """Index tensors and masks on the cache's device."""

    def __init__(self, inputs: StepInputs, cache: PlacesKeys, dtype: torch.dtype, reach: Reach) -> None:
        """`reach`: of layers whose rule says nothing of it."""
        device = cache.device
        self.token_ids = torch.from_numpy(inputs.token_ids).to(device)  # [T]
        self.positions = torch.from_numpy(inputs.positions.astype(np.float32)).to(device)  # [T] float32
        slots = cache.slots(inputs.block_of_token, inputs.offset_of_token)
        self.slots = torch.from_numpy(slots).to(device)  # [T * K] int64, places of each token's keys in layer 0
        self._inputs, self._cache, self._dtype, self._reach = inputs, cache, dtype, reach
        self._batches: dict[Reach, tuple[AttentionBatch, ...]] = {}

    def batches_of(self, reach: Reach) -> tuple[AttentionBatch, ...]:
        """Of layers that see as far; made once for all of them."""
        reach = self._reach if reach == Reach() else reach
        if reach not in self._batches:
            rows = _batched_rows(self._inputs, reach)
            self._batches[reach] = tuple(
                _place_batch(each, self._inputs, self._cache, self._dtype, reach) for each in rows
            )
        return self._batches[reach]


def _batched_rows(inputs: StepInputs, reach: Reach) -> list[list[int]]:
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


def _place_batch(
    rows: list[int], inputs: StepInputs, cache: PlacesKeys, dtype: torch.dtype, reach: Reach
) -> AttentionBatch:
    first_tokens = inputs.row_first_token[rows]
    num_queries = int(inputs.row_first_token[rows[0] + 1] - first_tokens[0])
    ranges = [_block_range(inputs, row, num_queries, reach) for row in rows]
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
