"""`Ops` on torch: one code path for CPUs and CUDA devices.

Owns the mapping of each operation to torch calls. Runs every call at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F  # noqa: N812

from relevo.core.errors import SettingsError
from relevo.core.ids import BlockId
from relevo.core.kv import KVLayout
from relevo.engine.inputs import StepInputs
from relevo.engine.ops.protocol import HostTensor
from relevo.engine.ops.torch.kv_cache import TORCH_DTYPES, TorchKVCache
from relevo.engine.ops.torch.step import AttentionBatch, TorchStep, place_step

Angles = tuple[torch.Tensor, torch.Tensor]


class TorchOps:
    def __init__(self, dtype: str = "float32", device: str = "cpu", num_threads: int | None = None) -> None:
        """`num_threads` is of the whole process (torch keeps one pool); None leaves it as it is."""
        if dtype not in TORCH_DTYPES:
            raise SettingsError(f"dtype {dtype!r} is not one of {', '.join(TORCH_DTYPES)}; choose one of them")
        if device.startswith("cuda") and not torch.cuda.is_available():
            raise SettingsError(f"device {device!r} was asked for but torch finds no CUDA device; use --device cpu")
        if num_threads is not None:
            torch.set_num_threads(num_threads)
        self.dtype = dtype
        self.native_formats: frozenset[str] = frozenset()
        self._dtype = TORCH_DTYPES[dtype]
        self._device = torch.device(device)
        self.kv_in_host_memory = self._device.type == "cpu"

    def weight(self, parts: Sequence[HostTensor]) -> torch.Tensor:
        tensors = [_as_torch(part) for part in parts]
        if len(tensors) == 1:
            return tensors[0].to(self._device, self._dtype)
        num_rows = sum(len(tensor) for tensor in tensors)
        stacked = torch.empty((num_rows, *tensors[0].shape[1:]), dtype=self._dtype, device=self._device)
        for target, tensor in zip(torch.split(stacked, [len(tensor) for tensor in tensors]), tensors, strict=True):
            target.copy_(tensor)
        return stacked

    def kv_cache(self, layout: KVLayout, num_blocks: int, host_memory: memoryview | None) -> TorchKVCache:
        return TorchKVCache(layout, num_blocks, self._device, host_memory if self.kv_in_host_memory else None)

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Inference mode: no bookkeeping for gradients, which is a tenth of the cost of small operations."""
        with torch.inference_mode():
            yield

    def begin_step(self, inputs: StepInputs, kv: TorchKVCache, sliding_window: int | None) -> TorchStep:
        kv.clear(inputs.fresh_tail_blocks())
        return place_step(inputs, kv, self._dtype, sliding_window)

    def copy_blocks(self, kv: TorchKVCache, copies: Sequence[tuple[BlockId, BlockId]]) -> None:
        kv.copy(copies)

    def embed(self, weight: torch.Tensor, step: TorchStep) -> torch.Tensor:
        return F.embedding(step.token_ids, weight)

    def linear(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return F.linear(x, weight, bias)

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        return F.rms_norm(x, weight.shape, weight, eps)

    def add(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x.add_(y)

    def silu_mul(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = x.chunk(2, dim=-1)
        return F.silu(gate).mul_(up)

    def split_heads(self, x: torch.Tensor, num_heads: Sequence[int], head_size: int) -> tuple[torch.Tensor, ...]:
        return torch.split(x.view(len(x), -1, head_size), list(num_heads), dim=1)

    def rope_angles(self, inv_freq: npt.NDArray[np.float32], scale: float, step: TorchStep) -> Angles:
        """[T, 1, D] each; the sines of the first half are negated, as `rope` wants them."""
        angles = step.positions[:, None] * torch.from_numpy(inv_freq).to(self._device)
        cos, sin = angles.cos().mul_(scale), angles.sin().mul_(scale)
        both = torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)
        return both[0].to(self._dtype)[:, None], both[1].to(self._dtype)[:, None]

    def rope(self, x: torch.Tensor, angles: Angles) -> torch.Tensor:
        cos, signed_sin = angles
        return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, dims=-1), signed_sin)

    def attention(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, kv: TorchKVCache, layer: int, step: TorchStep
    ) -> torch.Tensor:
        kv.write(layer, step.slots, k, v)
        if len(step.batches) == 1 and step.batches[0].token_indices is None:
            return _attend(q, kv, layer, step.batches[0])
        attended = q.new_empty(len(q), q.shape[1] * q.shape[2])
        for batch in step.batches:
            if batch.token_indices is not None:
                rows = q.index_select(0, batch.token_indices)
                attended.index_copy_(0, batch.token_indices, _attend(rows, kv, layer, batch))
            else:
                span = slice(batch.first_token, batch.first_token + batch.num_rows * batch.num_queries)
                attended[span] = _attend(q[span], kv, layer, batch)
        return attended

    def logits(self, x: torch.Tensor, weight: torch.Tensor, token_indices: Sequence[int]) -> npt.NDArray[np.float32]:
        rows = x.index_select(0, torch.tensor(token_indices, dtype=torch.int64, device=self._device))
        values: npt.NDArray[np.float32] = F.linear(rows, weight).float().cpu().numpy()
        return values


def _attend(q: torch.Tensor, kv: TorchKVCache, layer: int, batch: AttentionBatch) -> torch.Tensor:
    """q [R * Q, H, D] -> [R * Q, H * D].

    Query heads that share a KV head are told apart without copying keys: as more queries when each row has one token,
    as heads of a batch of KV heads when one row has many.
    """
    num_tokens, num_heads, head_size = q.shape
    k, v = kv.read(layer, batch.key_runs, batch.num_rows, q.dtype)  # [R, K, C, D]
    num_kv_heads = k.shape[1]
    shared_by = num_heads // num_kv_heads  # G
    if batch.num_queries == 1:
        q = q.reshape(num_tokens, num_kv_heads, shared_by, head_size)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=batch.mask)  # [R, K, G, D]
        return out.reshape(num_tokens, num_heads * head_size)
    q = q.view(num_tokens, num_kv_heads, shared_by, head_size).permute(1, 2, 0, 3)  # [K, G, Q, D]
    shape = (num_kv_heads, shared_by, k.shape[2], head_size)
    out = F.scaled_dot_product_attention(
        q, k.transpose(0, 1).expand(shape), v.transpose(0, 1).expand(shape), attn_mask=batch.mask
    )
    return out.permute(2, 0, 1, 3).reshape(num_tokens, num_heads * head_size)


def _as_torch(tensor: HostTensor) -> torch.Tensor:
    """Shares memory with the array where torch may write into it."""
    array = tensor.array if tensor.array.flags.writeable and tensor.array.flags.c_contiguous else tensor.array.copy()
    if tensor.dtype == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)
