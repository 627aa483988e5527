"""The cache of latents as a torch tensor [N, L, S, D]: one row per token, which all heads share.

It answers `torch.step` as a cache of one KV head does: seen as a matrix of runs [N * L, S * D], what one block has of a
layer is one row.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from relevo.core.ids import BlockId
from relevo.core.kv import KVGroup, KVLayout
from relevo.engine.ops.torch.kv_cache import TORCH_DTYPES

Int64Array = npt.NDArray[np.int64]


class TorchLatentCache:
    def __init__(
        self,
        layout: KVLayout,
        group: KVGroup,
        num_blocks: int,
        device: torch.device,
        host_memory: memoryview | None,
    ) -> None:
        """Over `host_memory` if given, else over new memory of the device, filled with zeros."""
        self.device = device
        self.num_blocks = num_blocks
        self.dtype = TORCH_DTYPES[layout.dtype]
        self._num_layers, self._block_size, self._width = group.num_layers, layout.block_size, group.key_size
        num_elements = num_blocks * group.num_layers * layout.block_size * group.key_size
        if host_memory is None:
            flat = torch.zeros(num_elements, dtype=self.dtype, device=device)
        else:
            flat = torch.frombuffer(host_memory, dtype=self.dtype, count=num_elements)
        self._blocks = flat.view(num_blocks, -1)
        self._by_layer = flat.view(num_blocks, group.num_layers, -1)
        self._as_runs = flat.view(-1, layout.block_size * group.key_size)
        self._as_slots = flat.view(-1, group.key_size)

    def slots(self, blocks: Int64Array, offsets: Int64Array) -> Int64Array:
        """[T], [T] -> [T]: slots in layer 0."""
        return blocks * (self._num_layers * self._block_size) + offsets

    def runs(self, tables: Int64Array) -> Int64Array:
        """[R, M] block ids -> [R * M]: runs in layer 0, so that gathering them gives [R, M * S, D]."""
        return (tables * self._num_layers).reshape(-1)

    def write_latents(self, layer: int, slots: torch.Tensor, latent: torch.Tensor, key: torch.Tensor) -> None:
        """[T, L] and [T, R]; slots as from `slots`."""
        rows = torch.cat((latent, key), dim=-1).to(self.dtype)
        self._as_slots.index_copy_(0, slots + layer * self._block_size, rows)

    def read_latents(self, layer: int, runs: torch.Tensor, num_rows: int, dtype: torch.dtype) -> torch.Tensor:
        """[R, M * S, D]; runs as from `runs`."""
        rows = self._as_runs.index_select(0, runs + layer)
        return rows.view(num_rows, -1, self._width).to(dtype)

    def clear(self, blocks_of_groups: Sequence[Sequence[BlockId]], layers: range) -> None:
        """In these layers only."""
        (blocks,) = blocks_of_groups
        for block in blocks:
            self._by_layer[block, layers.start : layers.stop].zero_()

    def copy(self, copies: Sequence[tuple[BlockId, BlockId]]) -> None:
        """One at a time: a block may be the target of one copy and the source of a later one."""
        for source, target in copies:
            self._blocks[target].copy_(self._blocks[source])
