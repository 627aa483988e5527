"""`Ops` on torch: one code path for CPUs and CUDA devices.

Owns weights and devices; what the operations compute is in `operations`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from relevo.core.errors import SettingsError, UnsupportedModel
from relevo.core.ids import BlockId
from relevo.core.kv import KVLayout
from relevo.engine.ops.cache_groups import latent_group, num_state_groups
from relevo.engine.ops.protocol import HostTensor, Trace
from relevo.engine.ops.ranks import RankSums
from relevo.engine.ops.torch.bits import from_bits
from relevo.engine.ops.torch.kv_cache import TORCH_DTYPES, TorchKVCache
from relevo.engine.ops.torch.latent_cache import TorchLatentCache
from relevo.engine.ops.torch.operations import TorchCache, TorchProgram
from relevo.engine.row_math import NumpyRowMath, RowMath


class TorchOps:
    def __init__(
        self,
        dtype: str = "float32",
        device: str = "cpu",
        num_threads: int | None = None,
        ranks: RankSums | None = None,
    ) -> None:
        """`num_threads` is of the whole process (torch keeps one pool); None leaves it as it is. `ranks`: that compute
        the same steps and map the same cache; None: there are no others. With as many threads on each, sums have the
        bits of one rank."""
        if dtype not in TORCH_DTYPES:
            raise SettingsError(f"dtype {dtype!r} is not one of {', '.join(TORCH_DTYPES)}; choose one of them")
        if device.startswith("cuda") and not torch.cuda.is_available():
            raise SettingsError(f"device {device!r} was asked for but torch finds no CUDA device; use --device cpu")
        if num_threads is not None:
            torch.set_num_threads(num_threads)
        self.dtype = dtype
        self._ranks = ranks
        self.native_formats: frozenset[str] = frozenset()
        self.row_math: RowMath = NumpyRowMath()
        self._dtype = TORCH_DTYPES[dtype]
        self._device = torch.device(device)
        self.kv_in_host_memory = self._device.type == "cpu"
        self.is_batch_invariant = False

    def use_cores(self, cores: Sequence[int]) -> bool:
        """torch's threads are not pinned: they run where the process may."""
        if self.kv_in_host_memory:
            torch.set_num_threads(len(cores))
        return self.kv_in_host_memory

    def weight(self, parts: Sequence[HostTensor], *, is_exact: bool = False) -> torch.Tensor:
        tensors = [_as_torch(part) for part in parts]
        if len(tensors) == 1:
            return tensors[0].to(self._device, torch.float32 if is_exact else self._dtype)
        assert not is_exact, "what chooses is not stacked"
        num_rows = sum(len(tensor) for tensor in tensors)
        stacked = torch.empty((num_rows, *tensors[0].shape[1:]), dtype=self._dtype, device=self._device)
        for target, tensor in zip(torch.split(stacked, [len(tensor) for tensor in tensors]), tensors, strict=True):
            target.copy_(tensor)
        return stacked

    def head_weights(self, matrices: HostTensor) -> torch.Tensor:
        return _as_torch(matrices).to(self._device, self._dtype)

    def kv_cache(self, layout: KVLayout, num_blocks: int, host_memory: memoryview | None) -> TorchCache:
        memory = host_memory if self.kv_in_host_memory else None
        if num_state_groups(layout) and layout.dtype != self.dtype:
            raise UnsupportedModel(
                f"a model with states keeps its cache in the dtype that it computes in, {self.dtype}, and "
                f"--kv-cache-dtype is {layout.dtype}; leave that out"
            )
        if (group := latent_group(layout)) is not None:
            return TorchLatentCache(layout, group, num_blocks, self._device, memory)
        return TorchKVCache(layout, num_blocks, self._device, memory)

    def copy_blocks(self, kv: TorchCache, copies: Sequence[tuple[BlockId, BlockId]]) -> None:
        kv.copy(copies)

    def program(self, trace: Trace, sliding_window: int | None, stage: range) -> TorchProgram:
        return TorchProgram(trace, self._dtype, sliding_window, stage, self._ranks)


def _as_torch(tensor: HostTensor) -> torch.Tensor:
    """Shares memory with the array where torch may write into it."""
    array = tensor.array if tensor.array.flags.writeable and tensor.array.flags.c_contiguous else tensor.array.copy()
    return from_bits(array, TORCH_DTYPES[tensor.dtype])
