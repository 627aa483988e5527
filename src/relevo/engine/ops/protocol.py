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
from relevo.core.model import Activation, ExpertPlaces, GatedDelta, QueryGrowth, Routing
from relevo.engine.inputs import StepInputs
from relevo.engine.ops.bfloat16 import bfloat16_values
from relevo.engine.ops.formats import BLOCK_FORMATS
from relevo.engine.row_math import RowMath, RowSummaries

Buffer = Any
Hidden = npt.NDArray[Any]  # [T, E] between two stages: bits of the activations' dtype, bfloat16 as uint16


@dataclass(frozen=True, slots=True)
class HostTensor:
    """A weight in host memory, row-major. numpy has no bfloat16: such a tensor is held as its uint16 bits.

    A matrix in one of the BLOCK_FORMATS is held as its file's bytes: uint8 [rows, bytes of a row].
    """

    array: npt.NDArray[Any]
    dtype: str  # "float32", "bfloat16", "float16" or a key of BLOCK_FORMATS

    def floats(self) -> npt.NDArray[np.float32]:
        """Of a tensor that is no matrix of blocks."""
        if self.dtype == "bfloat16":
            return bfloat16_values(self.array)
        return self.array.astype(np.float32)

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
    bias: Buffer | None  # [experts] float32, of the choice
    routing: Routing
    logit_bias: Buffer | None = None  # [experts] float32, of the scores
    places: ExpertPlaces | None = None  # of experts that lie whole on ranks; None: all matrices are here
    counts: npt.NDArray[np.int64] | None = None  # [experts]: tokens that chose each are added; None: not counted here
    rank_counts: npt.NDArray[np.int64] | None = None  # [ranks]: likewise what each computes, a token once per expert


@dataclass(frozen=True, slots=True)
class Reach:
    """How far back a query sees. Both 0: as far as there is anything."""

    window: int = 0  # tokens, its own included
    chunk: int = 0  # from the last multiple of it on

    def first_key(self, position: int) -> int:
        """The first position that a query at `position` sees."""
        of_window = max(0, position + 1 - self.window) if self.window else 0
        return max(of_window, position // self.chunk * self.chunk) if self.chunk else of_window


@dataclass(frozen=True, slots=True)
class AttentionRule:
    """What sets the attention of a layer apart."""

    reach: Reach = Reach()  # nothing: the program's
    scale: float | None = None  # of scores; None: D ** -0.5
    sinks: Buffer | None = None  # [H], a score beside those of the keys that has no value
    first_kv_head: int | None = None  # of the cache, where the keys and values are some of them; None: they are all


@dataclass(frozen=True, slots=True)
class ExpertBiases:
    """By expert."""

    gate_up: Sequence[Buffer]  # [2 * I]
    down: Sequence[Buffer]  # [E]; empty: another slice of the model adds them


@dataclass(frozen=True, slots=True)
class DeltaRule:
    """What a gated delta rule computes with."""

    sizes: GatedDelta
    num_state_heads: int  # key heads of the state, of which a slice of a model has some
    first_head: int  # of these, the first one here
    convolution: Buffer  # [C, 1, kernel]
    decay: Buffer  # [Hv] float32, below 0: of a head's state e to the power of it times a token's step is kept
    decay_bias: Buffer  # [Hv] float32


SILU = Activation()
PLAIN_ATTENTION = AttentionRule()


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

    def embed(self, weight: Buffer, scale: float = 1.0) -> Buffer:
        """[V, E] -> [T, E], times `scale` as the weight's own dtype rounds it"""
        ...

    def hidden_in(self, width: int) -> Buffer:
        """[T, width], as the stage before has left it; in place of `embed` where layers before these are elsewhere."""
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

    def reduce(self, parts: Sequence[Buffer]) -> Buffer:
        """Their sum, [T, E], and those of the other ranks: added in float32 as a balanced binary tree, in order.

        Parts are used up. Their number is a power of two.
        """
        ...

    def activate(self, x: Buffer, activation: Activation = SILU) -> Buffer:
        """[T, 2 * I] (gate, up) -> [T, I]"""
        ...

    def experts(
        self,
        x: Buffer,
        router: Router,
        gate_up: Sequence[Buffer],
        down: Sequence[Buffer],
        biases: ExpertBiases | None = None,
        activation: Activation = SILU,
    ) -> Sequence[Buffer]:
        """[T, E] -> [T, E]: the sum, experts ascending, of what each token's chosen experts make of it, by weight; with
        `router.places` one for each slice of this rank, of the slice's experts.

        gate_up and down by expert that is here: [2 * I, E] and [E, I]. A token's sum depends neither on other tokens of
        the step nor on where its experts lie.
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

    def rope_angles(self, inv_freq: npt.NDArray[np.float32], scale: float, growth: QueryGrowth | None = None) -> Buffer:
        """Cosines and sines for the positions of the step, times `scale`; inv_freq is [R / 2], radians per position.

        With `growth`, times its factor of each position too: no frequency but 0 scales heads and does not turn them.
        """
        ...

    def rope(self, x: Buffer, angles: Buffer) -> Buffer:
        """Rotate the first 2 * len(inv_freq) elements of each head of [T, n, D]; the first half of them is paired with
        the second (the order of Hugging Face checkpoints)."""
        ...

    def attention(self, q: Buffer, k: Buffer, v: Buffer, layer: int, rule: AttentionRule = PLAIN_ATTENTION) -> Buffer:
        """Write k and v [T, K, D] into the step's slots, then attend: q [T, H, D] -> [T, H * D].

        Causal, each row over its own block table, as far back as the rule says.
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

    def gate(self, x: Buffer, scores: Buffer) -> Buffer:
        """[T, n], times the sigmoid of the scores [T, n] or [T, 1]."""
        ...

    def gated_delta(self, x: Buffer, gates: Buffer, layer: int, rule: DeltaRule) -> Buffer:
        """x [T, C] (queries, keys, values), gates [T, 2 * Hv] -> [T, V]: each row goes on from its state, which it
        leaves changed. A row that begins at position 0 begins with zeros, whatever lies there.

        Token by token, so that how a row is cut into steps changes no bit.
        """
        ...

    def gated_norm(self, x: Buffer, weight: Buffer, gate: Buffer, eps: float) -> Buffer:
        """[T, n * D], each head normed, times the weight [D] and the SiLU of the gate [T, n * D]."""
        ...

    def logits(self, x: Buffer, weight: Buffer) -> Buffer:
        """x [T, E], weight [V, E] -> [R, V] for the tokens that the step asks for. The last operation of a trace."""
        ...

    def hidden_out(self, x: Buffer) -> Buffer:
        """[T, E], for the next stage. The last operation of a trace where layers behind these are elsewhere."""
        ...


Trace = Callable[[Operations], Buffer]


class Program(Protocol):
    """A trace, ready to be run once per step.

    Clears `inputs.fresh_tail_blocks()` first: nothing of a former owner's numbers may reach the next, not even as
    0 * NaN in slots that are not used yet. Of its own layers only: what other stages have in a block is theirs.
    """

    def run(
        self, inputs: StepInputs, kv: Buffer, logit_tokens: Sequence[int], hidden: Hidden | None = None
    ) -> StepLogits:
        """Compute a step: write its KV, return logits after these tokens of the step. Of a trace that ends with them.
        `hidden`: of a trace that begins with `hidden_in`."""
        ...

    def run_inner(self, inputs: StepInputs, kv: Buffer, hidden: Hidden | None) -> Hidden:
        """Of a trace that ends with `hidden_out`. Valid until the program runs again."""
        ...


class Ops(Protocol):
    """A backend."""

    dtype: str  # of activations, a key of core.kv.DTYPE_BYTES
    native_formats: frozenset[str]  # keys of BLOCK_FORMATS that `weight` takes as the file's bytes
    kv_in_host_memory: bool  # False: the cache lies on a device, and a transport over host memory cannot move it
    row_math: RowMath  # for the logits of its programs
    is_batch_invariant: bool  # a token's numbers keep their bits, whatever else is computed in its step

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
        """Copy whole blocks, (source, target), in order; of all ranks one does, between two steps."""
        ...

    def program(self, trace: Trace, sliding_window: int | None, stage: range) -> Program:
        """`sliding_window`: tokens a query sees in layers whose rule says nothing, its own included; None: all.
        `stage`: the layers of the cache that the trace computes.

        Raises UnsupportedModel if the backend cannot carry out an operation or a combination of them.
        """
        ...
