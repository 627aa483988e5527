"""What a backend is, and the operations a decoder is written against.

Owns the words only. A model is a trace: a function that calls operations on opaque buffers and returns next-token
logits. It passes buffers from one operation to the next and never looks inside, and no value is read back before the
end. So a backend may run the trace in every step, or record its operations once and replay them.

Shapes: T tokens in the step, B rows, R rows of logits, H query heads, K KV heads, D head size, E hidden size,
V vocabulary, N blocks, S block size, L layers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from relevo.core.ids import BlockId
from relevo.core.kv import KVLayout
from relevo.core.model import Routing
from relevo.engine.inputs import StepInputs
from relevo.engine.ops.formats import BLOCK_FORMATS
from relevo.engine.row_math import RowMath, RowSummaries

Buffer = Any


@dataclass(frozen=True, slots=True)
class HostTensor:
    """A weight in host memory, row-major. numpy has no bfloat16: such a tensor is held as its uint16 bits.

    A matrix in one of the BLOCK_FORMATS is held as its file's bytes: uint8 [rows, bytes of a row].
    """

    array: npt.NDArray[Any]
    dtype: str  # "float32", "bfloat16", "float16" or a key of BLOCK_FORMATS

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the weights, however they are stored: (rows, k) for a matrix."""
        block = BLOCK_FORMATS.get(self.dtype)
        if block is None:
            return self.array.shape
        rows, row_bytes = self.array.shape
        return rows, row_bytes // block.stored_bytes * block.elements


@dataclass(frozen=True, slots=True)
class Router:
    weight: Buffer  # [experts, E] float32
    bias: Buffer | None  # [experts] float32
    routing: Routing


@dataclass(frozen=True, slots=True)
class StepLogits:
    """Next-token logits of a step. May lie in the backend's own memory: read them before the program runs again."""

    values: npt.NDArray[np.float32]  # [R, V]
    summaries: RowSummaries | None  # None: the backend made none
    kernel_s: float  # time spent in operations; the rest of a step is inputs, sampling and the interpreter


class Operations(Protocol):
    """What a trace calls. A buffer passed to `add`, `rope` or `split_heads` is used up.

    Heads [T, n, D] may be passed where [T, n * D] is asked for.
    """

    def embed(self, weight: Buffer) -> Buffer:
        """[V, E] -> [T, E]"""
        ...

    def linear(self, x: Buffer, weight: Buffer, bias: Buffer | None) -> Buffer:
        """[T, in] -> [T, out] with weight [out, in]"""
        ...

    def rms_norm(self, x: Buffer, weight: Buffer, eps: float) -> Buffer:
        """Over [E], over each head [D], or over all heads of a token [n * D], as the weight's size says."""
        ...

    def add(self, x: Buffer, y: Buffer) -> Buffer:
        """May write into x."""
        ...

    def silu_mul(self, x: Buffer) -> Buffer:
        """[T, 2 * I] (gate, up) -> [T, I]: silu(gate) * up"""
        ...

    def experts(self, x: Buffer, router: Router, gate_up: Sequence[Buffer], down: Sequence[Buffer]) -> Buffer:
        """[T, E] -> [T, E]: the sum, experts ascending, of what each token's chosen experts make of it, by weight.

        gate_up and down by expert: [2 * I, E] and [E, I]. A token's sum does not depend on other tokens of the step.
        """
        ...

    def split_heads(self, x: Buffer, num_heads: Sequence[int], head_size: int) -> tuple[Buffer, ...]:
        """[T, sum(num_heads) * D] -> one [T, n, D] for each n in num_heads"""
        ...

    def split(self, x: Buffer, widths: Sequence[int]) -> tuple[Buffer, ...]:
        """[T, sum(widths)] -> one [T, width] for each. x is used up."""
        ...

    def linear_heads(self, x: Buffer, weights: Buffer) -> Buffer:
        """[T, H * in] -> [T, H * out]: each head times its own matrix of `Ops.head_weights`."""
        ...

    def rope_angles(self, inv_freq: npt.NDArray[np.float32], scale: float) -> Buffer:
        """Cosines and sines for the positions of the step, times `scale`; inv_freq is [R / 2], radians per position."""
        ...

    def rope(self, x: Buffer, angles: Buffer) -> Buffer:
        """Rotate the first 2 * len(inv_freq) elements of each head of [T, n, D]; the first half of them is paired with
        the second (the order of Hugging Face checkpoints)."""
        ...

    def attention(self, q: Buffer, k: Buffer, v: Buffer, layer: int) -> Buffer:
        """Write k and v [T, K, D] into the step's slots, then attend: q [T, H, D] -> [T, H * D].

        Causal, scaled by D ** -0.5, each row over its own block table and within the sliding window.
        """
        ...

    def latent_attention(
        self, q: Buffer, q_rotated: Buffer, latent: Buffer, key: Buffer, layer: int, scale: float
    ) -> Buffer:
        """Write latent [T, L] and key [T, 1, R] into the step's slots, then attend: q [T, H * L] and q_rotated
        [T, H, R] -> [T, H * L].

        A token's key is its latent and its rotated key, one behind the other, its value the latent; all heads share
        them. Causal, each row over its own block table.
        """
        ...

    def logits(self, x: Buffer, weight: Buffer) -> Buffer:
        """x [T, E], weight [V, E] -> [R, V] for the tokens that the step asks for. The last operation of a trace."""
        ...


Trace = Callable[[Operations], Buffer]


class Program(Protocol):
    """A trace, ready to be run once per step."""

    def run(self, inputs: StepInputs, kv: Buffer, logit_tokens: Sequence[int]) -> StepLogits:
        """Compute a step: write its KV, return logits after these tokens of the step.

        Clears `inputs.fresh_tail_blocks()` first: nothing of a former owner's numbers may reach the next, not even as
        0 * NaN in slots that are not used yet.
        """
        ...


class Ops(Protocol):
    """A backend."""

    dtype: str  # of activations, a key of core.kv.DTYPE_BYTES
    native_formats: frozenset[str]  # keys of BLOCK_FORMATS that `weight` takes as the file's bytes
    kv_in_host_memory: bool  # False: the cache lies on a device, and a transport over host memory cannot move it
    row_math: RowMath  # for the logits of its programs

    def use_cores(self, cores: Sequence[int]) -> bool:
        """Compute on one thread per core from the next call on; the caller's is the first. Results keep their bits.
        False: this backend does not compute on cores."""
        ...

    def weight(self, parts: Sequence[HostTensor], *, is_exact: bool = False) -> Buffer:
        """A weight as operations take it; parts are stacked along their first dimension. May keep the parts' memory.
        `is_exact`: in float32, whatever others are rounded to."""
        ...

    def head_weights(self, matrices: HostTensor) -> Buffer:
        """One matrix for each head, [H, out, in] floats, for `linear_heads`. Never rounded to integers."""
        ...

    def kv_cache(self, layout: KVLayout, num_blocks: int, host_memory: memoryview | None) -> Buffer:
        """A cache of num_blocks blocks, each laid out as KVLayout says: [N, L, 2, K, S, D], of latents [N, L, S, D].

        With `kv_in_host_memory` it is a view over `host_memory` (num_blocks * layout.bytes_per_block bytes, writable).
        """
        ...

    def copy_blocks(self, kv: Buffer, copies: Sequence[tuple[BlockId, BlockId]]) -> None:
        """Copy whole blocks, (source, target), in order."""
        ...

    def program(self, trace: Trace, sliding_window: int | None) -> Program:
        """`sliding_window`: tokens a query sees, its own included; None: all.

        Raises UnsupportedModel if the backend cannot carry out an operation or a combination of them.
        """
        ...
