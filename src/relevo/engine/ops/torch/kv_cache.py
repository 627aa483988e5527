"""The KV cache as a torch tensor, and where in it a block's keys and values lie.

Owns the arithmetic of the block layout [N, L, 2, K, S, D], L being the layers of the widest KV group: a block of
another one fills the front of it. Seen as a matrix of runs [N * L * 2 * K, S * D], the keys of one head in one block
are one row; seen as a matrix of slots [N * L * 2 * K * S, D], the key of one token and head is.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from relevo.core.ids import BlockId
from relevo.core.kv import KVLayout
from relevo.engine.ops.cache_groups import layer_places, token_groups
from relevo.engine.ops.torch.states import StateMemory

Int64Array = npt.NDArray[np.int64]

TORCH_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class TorchKVCache:
    def __init__(self, layout: KVLayout, num_blocks: int, device: torch.device, host_memory: memoryview | None) -> None:
        """Over `host_memory` if given, else over new memory of the device, filled with zeros."""
        groups = token_groups(layout)
        group, num_layers = groups[0], max(each.num_layers for each in groups)
        self.device = device
        self.num_blocks = num_blocks
        self.dtype = TORCH_DTYPES[layout.dtype]
        self._places = layer_places(groups)
        self._num_heads, self._block_size, self._head_size = group.num_kv_heads, layout.block_size, group.key_size
        self._runs_per_block = num_layers * 2 * group.num_kv_heads
        elements_per_block = self._runs_per_block * layout.block_size * group.key_size
        if host_memory is None:
            flat = torch.zeros(num_blocks * elements_per_block, dtype=self.dtype, device=device)
        else:
            flat = torch.frombuffer(host_memory, dtype=self.dtype, count=num_blocks * elements_per_block)
        self._blocks = flat.view(num_blocks, elements_per_block)
        self._by_layer = flat.view(num_blocks, num_layers, -1)
        self._as_runs = flat.view(-1, layout.block_size * group.key_size)
        self._as_slots = flat.view(-1, group.key_size)
        self.states = StateMemory(layout, self._blocks)

    def group_of(self, layer: int) -> int:
        """Whose tables say where the layer's keys and values lie."""
        return self._places[layer].group

    def slots(self, blocks: Int64Array, offsets: Int64Array) -> Int64Array:
        """[T], [T] -> [T * K]: slots of the keys in the first layer of a block."""
        heads = np.arange(self._num_heads)
        runs = blocks[:, None] * self._runs_per_block + heads
        return (runs * self._block_size + offsets[:, None]).reshape(-1)

    def runs(self, tables: Int64Array) -> Int64Array:
        """[R, M] block ids -> [R * K * M]: runs of keys in the first layer of a block, so that gathering them gives
        [R, K, M * S, D]."""
        heads = np.arange(self._num_heads)[:, None]
        return (tables[:, None, :] * self._runs_per_block + heads).reshape(-1)

    def write(self, layer: int, slots: torch.Tensor, k: torch.Tensor, v: torch.Tensor, heads: slice) -> None:
        """k, v: [T, K, D], of these heads; slots as from `slots`, of the layer's group."""
        slots = slots.view(-1, self._num_heads)[:, heads].reshape(-1)
        first = self._places[layer].place * 2 * self._num_heads * self._block_size
        values_after = self._num_heads * self._block_size
        shape = (-1, self._head_size)
        self._as_slots.index_copy_(0, slots + first, k.reshape(shape).to(self.dtype))
        self._as_slots.index_copy_(0, slots + (first + values_after), v.reshape(shape).to(self.dtype))

    def read(
        self, layer: int, runs: torch.Tensor, num_rows: int, dtype: torch.dtype, heads: slice
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values [R, K, M * S, D] of these heads; runs as from `runs`, of the layer's group."""
        first = self._places[layer].place * 2 * self._num_heads
        of_heads = runs.view(num_rows, self._num_heads, -1)[:, heads]
        shape, runs = (num_rows, of_heads.shape[1], -1, self._head_size), of_heads.reshape(-1)
        keys = self._as_runs.index_select(0, runs + first)
        values = self._as_runs.index_select(0, runs + (first + self._num_heads))
        return keys.view(shape).to(dtype), values.view(shape).to(dtype)

    def clear(self, blocks_of_groups: Sequence[Sequence[BlockId]], layers: range) -> None:
        """What these layers have in blocks, of each KV group its own."""
        for group, blocks in enumerate(blocks_of_groups):
            with_tokens = [self._places[layer] for layer in layers if layer in self._places]
            in_group = [place for place in with_tokens if place.group == group]
            if in_group:
                of_blocks = torch.tensor(blocks)[:, None], torch.tensor([each.place for each in in_group])
                self._by_layer[of_blocks] = 0.0

    def copy(self, copies: Sequence[tuple[BlockId, BlockId]]) -> None:
        """One at a time: a block may be the target of one copy and the source of a later one."""
        for source, target in copies:
            self._blocks[target].copy_(self._blocks[source])
