"""`Ops` on the CPU kernels of relevo_native.

Owns the choice of formats and the way into the native module. Activations are float32; weights stay in the format they
are stored in unless another is asked for. A model's operations are recorded once (recorder) and replayed in one call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
from relevo_native import _native

from relevo.core.errors import SettingsError, UnsupportedModel
from relevo.core.ids import BlockId, TokenId
from relevo.core.kv import KVLayout
from relevo.engine.inputs import StepInputs
from relevo.engine.ops.cache_groups import latent_group, layer_places, state_groups, token_groups
from relevo.engine.ops.formats import ARM_PATHS, BLOCK_FORMATS, multiplied_formats
from relevo.engine.ops.native.recorder import Recorder
from relevo.engine.ops.protocol import Hidden, HostTensor, StepLogits, Trace
from relevo.engine.ops.ranks import RankSums, once_for_all
from relevo.engine.row_math import Masks, RowDraw, RowMath, RowSummaries
from relevo.engine.sampling_math import Logits, TokenIds

DTYPES = ("auto", "float32", "bfloat16", "float16")
QUANTIZATIONS = {"int8": "q8_channel"}
ACTIVATION_DTYPES = ("int16", "int8", "bfloat16")
_MASK = (1 << 64) - 1
_NO_TOKENS = np.empty(0, dtype=np.int64)


class NativeOps:
    def __init__(
        self,
        dtype: str = "auto",
        cores: Sequence[int] = (),
        quantization: str | None = None,
        activation_dtype: str = "int16",
        path: str = "",
        ranks: RankSums | None = None,
    ) -> None:
        """Compute on one thread per core of `cores`; the caller's thread is the first (none given: the only one).

        `dtype`, of matrices: "auto" keeps what is stored. `quantization` "int8": every matrix in int8 with a scale per
        row. `activation_dtype`: what inputs of matrices of integers are rounded to, "int16" or "int8"; "bfloat16": as
        "int16", and those of matrices of bfloat16 are rounded to it. Those of the output layer are always int16 or
        float32, which costs little there. `path`: an instruction path instead of the best one.
        `ranks`: that compute the same steps and map the same cache; None: there are no others. Raises SettingsError.
        """
        if dtype not in DTYPES:
            raise SettingsError(f"dtype {dtype!r} is not one of {', '.join(DTYPES)}; choose one of them")
        if quantization is not None and quantization not in QUANTIZATIONS:
            known = ", ".join(QUANTIZATIONS)
            raise SettingsError(f"quantization {quantization!r} is not implemented on a CPU; {known} is")
        if activation_dtype not in ACTIVATION_DTYPES:
            known = ", ".join(ACTIVATION_DTYPES)
            raise SettingsError(f"activation dtype {activation_dtype!r} is not one of {known}; choose one of them")
        try:
            self._engine = _native.Engine(path, list(cores) or [0])
        except ValueError as error:
            raise SettingsError(str(error)) from error
        self.dtype = "float32"
        self._ranks = ranks
        is_as_stored = dtype == "auto" and quantization is None
        self.native_formats = multiplied_formats(self.path) if is_as_stored else frozenset()
        self.kv_in_host_memory = True
        self.is_batch_invariant = True
        self.row_math: RowMath = NativeRowMath(self._engine)
        self._activation_dtype = activation_dtype
        if activation_dtype == "bfloat16" and self.path in ARM_PATHS:
            raise SettingsError(f"activation dtype bfloat16 has no kernels on path {self.path}; leave it out")
        self._packed_as = QUANTIZATIONS[quantization] if quantization else None if dtype == "auto" else dtype

    @property
    def path(self) -> str:
        """The instruction path in use."""
        name: str = self._engine.path
        return name

    @property
    def weight_bytes(self) -> int:
        """Memory of all packed matrices."""
        num_bytes: int = self._engine.weight_bytes
        return num_bytes

    def use_cores(self, cores: Sequence[int]) -> bool:
        self._engine.use_cores(list(cores))
        return True

    def weight(self, parts: Sequence[HostTensor], *, is_exact: bool = False) -> Any:
        """Packed at once, on all threads; the parts' memory is not kept. What is no matrix stays as exact as it is."""
        if len(parts[0].shape) != 2:
            values = np.concatenate([_as_float32(part).ravel() for part in parts])
            return _native.Vector("float32", values.view(np.uint8))
        if is_exact:
            exact = [HostTensor(_as_float32(part), "float32") for part in parts]
            same = [(part.dtype, part.dtype, _rows_of_bytes(part)) for part in exact]
            return self._engine.matrix(same, exact[0].shape[1])
        stacked = [(part.dtype, self._format(part.dtype), _rows_of_bytes(part)) for part in parts]
        return self._engine.matrix(stacked, parts[0].shape[1])

    def _format(self, stored_as: str) -> str:
        return stored_as if stored_as in BLOCK_FORMATS or self._packed_as is None else self._packed_as

    def head_weights(self, matrices: HostTensor) -> Any:
        stored, (_, _, k) = matrices.dtype, matrices.shape
        asked = self._packed_as if self._packed_as in DTYPES else None
        return [
            self._engine.matrix([(stored, asked or stored, _rows_of_bytes(HostTensor(each, stored)))], k)
            for each in matrices.array
        ]

    def kv_cache(self, layout: KVLayout, num_blocks: int, host_memory: memoryview | None) -> Any:
        latents = latent_group(layout)
        groups = (latents,) if latents is not None else token_groups(layout)
        places = layer_places(groups)
        if host_memory is None:
            memory = np.zeros(num_blocks * layout.bytes_per_block, dtype=np.uint8)
        else:
            memory = np.frombuffer(host_memory, dtype=np.uint8)
        most_layers, group = max(each.num_layers for each in groups), groups[0]
        sizes = (num_blocks, most_layers, group.num_kv_heads, layout.block_size, group.key_size)
        states = [(list(each.layers), each.state_bytes) for each in state_groups(layout)]
        layers = [list(each.layers) for each in groups] if states or len(places) > most_layers else []
        try:
            return _native.KVCache(memory, layout.dtype, *sizes, latents is not None, layers, states)
        except ValueError as error:
            raise UnsupportedModel(f"this cache cannot be used: {error}") from error

    def copy_blocks(self, kv: Any, copies: Sequence[tuple[BlockId, BlockId]]) -> None:
        kv.copy(list(copies))

    def program(self, trace: Trace, sliding_window: int | None, stage: range) -> NativeProgram:
        program: Any = _native.Program(self._engine)
        if self._ranks is not None:
            program.clears_blocks = False  # one rank does
        recorder = Recorder(program, self._activation_dtype, self._ranks)
        recorder.finish(trace(recorder))
        if self._activation_dtype == "bfloat16" and not recorder.has_bfloats:
            raise SettingsError(
                "--activation-dtype bfloat16 is for matrices of bfloat16, and no layer of this model has one as it is "
                "loaded; choose --dtype bfloat16, or leave it out"
            )
        return NativeProgram(program, sliding_window or 0, stage, self._ranks)


@dataclass(frozen=True, slots=True)
class AskedLogits:
    """Which tokens' logits steps are asked for, and where they find them: kept while steps ask for the same."""

    logit_tokens: list[int]
    tokens: npt.NDArray[np.int64]  # the same, ascending, without repeats
    places: npt.NDArray[np.intp] | None  # of logit_tokens in tokens; None: they are the same
    values: npt.NDArray[np.float32]
    summaries: RowSummaries

    def taken(self, kernel_s: float) -> StepLogits:
        values, summaries, places = self.values, self.summaries, self.places
        if places is not None:
            values, summaries = values[places], RowSummaries(summaries.best[places], summaries.finite[places])
        return StepLogits(values, summaries, kernel_s)


class NativeProgram:
    """Replays a recorded trace. Logits, summaries and hidden states lie in memory that the next step overwrites."""

    def __init__(self, program: Any, sliding_window: int, stage: range, ranks: RankSums | None = None) -> None:
        self.native = program
        self._stage = stage
        self._ranks = ranks
        self._sliding_window = sliding_window
        self._asked: AskedLogits | None = None
        self._states = np.empty((0, 0), dtype=np.float32)

    def run(self, inputs: StepInputs, kv: Any, logit_tokens: Sequence[int], hidden: Hidden | None = None) -> StepLogits:
        if self._asked is None or self._asked.logit_tokens != logit_tokens:
            self._asked = self._ask(list(logit_tokens))
        asked = self._asked
        kernel_s = self._run(inputs, kv, asked.tokens, asked.summaries, () if hidden is None else (hidden,))
        return asked.taken(kernel_s)

    def run_inner(self, inputs: StepInputs, kv: Any, hidden: Hidden | None) -> Hidden:
        if len(self._states) < inputs.num_tokens:
            self._states = np.empty((inputs.num_tokens, self.native.hidden_size), dtype=np.float32)
        states = self._states[: inputs.num_tokens]
        self._run(inputs, kv, _NO_TOKENS, RowSummaries(_NO_TOKENS, np.empty(0, dtype=np.bool_)), (hidden, states))
        return states

    def _run(
        self,
        inputs: StepInputs,
        kv: Any,
        logit_tokens: npt.NDArray[np.int64],
        summaries: RowSummaries,
        states: tuple[Hidden | None, ...],
    ) -> float:
        if self._ranks is not None and (fresh := inputs.fresh_tail_blocks()):
            once_for_all(self._ranks, lambda: kv.clear(fresh, self._stage.start, self._stage.stop))
        kernel_s: float = self.native.run(
            kv,
            inputs.token_ids,
            inputs.positions,
            inputs.block_of_token,
            inputs.offset_of_token,
            inputs.row_first_token,
            inputs.context_lengths,
            inputs.block_tables,
            self._sliding_window,
            logit_tokens,
            summaries.best,
            summaries.finite,
            *states,
            state_blocks=inputs.state_blocks,
        )
        return kernel_s

    def _ask(self, logit_tokens: list[int]) -> AskedLogits:
        tokens, places = np.array(logit_tokens, dtype=np.int64), None
        if any(after <= before for before, after in pairwise(logit_tokens)):
            tokens, places = np.unique(tokens, return_inverse=True)
        count = len(tokens)
        summaries = RowSummaries(np.empty(count, dtype=np.int64), np.empty(count, dtype=np.bool_))
        values: npt.NDArray[np.float32] = self.native.logit_memory(count)[:count]
        return AskedLogits(logit_tokens, tokens, places, values, summaries)


class NativeRowMath:
    """The sampler's arithmetic on the engine's threads."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine

    def summarise(self, logits: Logits) -> RowSummaries:
        best, finite = _native.row_summaries(self._engine.path, np.ascontiguousarray(logits))
        return RowSummaries(best, finite)

    def draw(self, logits: Logits, draws: Sequence[RowDraw]) -> list[TokenId]:
        wanted = [
            (
                one.row,
                one.sampling.temperature,
                one.sampling.min_p,
                one.sampling.top_p,
                one.sampling.top_k,
                one.sampling.seed & _MASK,
                one.sample_index,
                one.position,
            )
            for one in draws
        ]
        token_ids: list[TokenId] = self._engine.draw(np.ascontiguousarray(logits), wanted)
        return token_ids

    def mask(self, logits: Logits, rows: Sequence[int], masks: Masks, masked: Logits) -> TokenIds:
        best: list[TokenId] = self._engine.mask(np.ascontiguousarray(logits), list(rows), masks, masked)
        return np.array(best, dtype=np.int64)


def _as_float32(tensor: HostTensor) -> npt.NDArray[np.float32]:
    if tensor.dtype in BLOCK_FORMATS:
        raise UnsupportedModel(f"a router or a bias stored as {tensor.dtype} is not implemented; store it as floats")
    return tensor.floats()


def _rows_of_bytes(tensor: HostTensor) -> npt.NDArray[np.uint8]:
    array = np.ascontiguousarray(tensor.array)
    return array.view(np.uint8).reshape(len(array), -1)
