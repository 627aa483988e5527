"""The operations a decoder is written against. Each backend gives them its own buffers.

Owns the words only. Buffers are opaque: a model passes them from one operation to the next and never looks inside, so a
backend may run each call at once, or note the calls of a step and run them later. A model is therefore a pure sequence
of calls: no values are read back before `logits`.

Shapes: T tokens in the step, B rows, H query heads, K KV heads, D head size, E hidden size, V vocabulary, N blocks,
S block size, L layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from relevo.core.ids import BlockId
from relevo.core.kv import KVLayout
from relevo.engine.inputs import StepInputs

Buffer = Any

BLOCK_ELEMENTS = 32  # weights in one block of GGUF's simple quantisations
BLOCK_BYTES = {"q4_0": 18, "q4_1": 20, "q8_0": 34}  # of one block, with its float16 scale (and minimum)


@dataclass(frozen=True, slots=True)
class HostTensor:
    """A weight in host memory, row-major. numpy has no bfloat16: such a tensor is held as its uint16 bits.

    A matrix in one of the BLOCK_BYTES formats is held as its file's bytes: uint8 [rows, bytes of a row].
    """

    array: npt.NDArray[Any]
    dtype: str  # "float32", "bfloat16", "float16" or a key of BLOCK_BYTES

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the weights, however they are stored: (rows, k) for a matrix."""
        if self.dtype not in BLOCK_BYTES:
            return self.array.shape
        rows, row_bytes = self.array.shape
        return rows, row_bytes // BLOCK_BYTES[self.dtype] * BLOCK_ELEMENTS


class Ops(Protocol):
    dtype: str  # of activations and weights, a key of core.kv.DTYPE_BYTES
    native_formats: frozenset[str]  # keys of BLOCK_BYTES that `weight` takes as the file's bytes
    kv_in_host_memory: bool  # False: the cache lies on a device, and a transport over host memory cannot move it

    def weight(self, parts: Sequence[HostTensor]) -> Buffer:
        """A weight in `dtype`; parts are stacked along their first dimension. May keep (not copy) the parts' memory."""
        ...

    def kv_cache(self, layout: KVLayout, num_blocks: int, host_memory: memoryview | None) -> Buffer:
        """A cache of num_blocks blocks, each laid out as KVLayout says: [N, L, 2, K, S, D].

        With `kv_in_host_memory` it is a view over `host_memory` (num_blocks * layout.bytes_per_block bytes, writable).
        """
        ...

    def computing(self) -> AbstractContextManager[None]:
        """Around a whole forward pass: what a backend sets up once for all of its operations."""
        ...

    def begin_step(self, inputs: StepInputs, kv: Buffer, sliding_window: int | None) -> Buffer:
        """Place a step's indices and masks where the other operations need them. Valid until the next begin_step.

        Clears `inputs.fresh_tail_blocks()`: attention reads whole blocks and gives unused slots the weight 0, which
        leaves nothing of a former owner's numbers only if they are finite (0 * inf is not a number).
        """
        ...

    def copy_blocks(self, kv: Buffer, copies: Sequence[tuple[BlockId, BlockId]]) -> None:
        """Copy whole blocks, (source, target), in order."""
        ...

    def embed(self, weight: Buffer, step: Buffer) -> Buffer:
        """[V, E] -> [T, E]"""
        ...

    def linear(self, x: Buffer, weight: Buffer, bias: Buffer | None) -> Buffer:
        """[T, in] -> [T, out] with weight [out, in]"""
        ...

    def rms_norm(self, x: Buffer, weight: Buffer, eps: float) -> Buffer:
        """Over the last dimension, which is [E] or (per head) [D]."""
        ...

    def add(self, x: Buffer, y: Buffer) -> Buffer:
        """May write into x, which is not used afterwards."""
        ...

    def silu_mul(self, x: Buffer) -> Buffer:
        """[T, 2 * I] (gate, up) -> [T, I]: silu(gate) * up"""
        ...

    def split_heads(self, x: Buffer, num_heads: Sequence[int], head_size: int) -> tuple[Buffer, ...]:
        """[T, sum(num_heads) * D] -> one [T, n, D] for each n in num_heads"""
        ...

    def rope_angles(self, inv_freq: npt.NDArray[np.float32], scale: float, step: Buffer) -> Buffer:
        """Cosines and sines for the positions of the step, times `scale`; inv_freq is [D / 2], radians per position."""
        ...

    def rope(self, x: Buffer, angles: Buffer) -> Buffer:
        """Rotate [T, n, D]; dimension i is paired with i + D / 2 (the order of Hugging Face checkpoints)."""
        ...

    def attention(self, q: Buffer, k: Buffer, v: Buffer, kv: Buffer, layer: int, step: Buffer) -> Buffer:
        """Write k and v [T, K, D] into the step's slots, then attend: q [T, H, D] -> [T, H * D].

        Causal, scaled by D ** -0.5, each row over its own block table and within the step's sliding window.
        """
        ...

    def logits(self, x: Buffer, weight: Buffer, token_indices: Sequence[int]) -> npt.NDArray[np.float32]:
        """x [T, E], weight [V, E] -> [len(token_indices), V]; reads the values back."""
        ...
