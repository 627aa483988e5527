"""Weights of GPTQ and AWQ: integers [in, out] packed into 32 bits, and for each group of rows a scale and a zero point.

Owns which tensors belong together, how each method packs, and what they are checked for. Sources: the formats of
AutoGPTQ and GPTQModel (`gptq` stores zero points less one, `gptq_v2` as they are) and of AutoAWQ (`gemm`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from relevo.core.errors import ModelFileError, UnsupportedModel
from relevo.engine.loaders.model_files import StoredTensor
from relevo.engine.loaders.plain_tensor import FLOATS
from relevo.engine.loaders.weight_parts import check_integers, check_not_left, check_shape, part_of
from relevo.engine.models.quantization import Quantization
from relevo.engine.models.weight_plan import KV_UP

if TYPE_CHECKING:  # a process that only opens a folder does without numpy
    import numpy as np
    import numpy.typing as npt

    from relevo.engine.ops.protocol import HostTensor

    Integers = npt.NDArray[np.uint8]
    Bytes = npt.NDArray[np.uint8]

_PARTS = ("qzeros", "scales", "g_idx")
_AWQ_COLUMNS = (0, 2, 4, 6, 1, 3, 5, 7)  # of eight: which one lies at bits 4i
_MAX_ROWS = 256  # arbitrary: rows of a matrix that are in memory as float32


@dataclass(frozen=True, slots=True)
class _Packed:
    """One matrix: `weights` [in, out] after unpacking."""

    quantization: Quantization
    name: str  # of the module
    num_in: int
    num_out: int
    scales: StoredTensor  # [groups, out]
    zeros: StoredTensor  # [groups, out], packed
    order: StoredTensor | None  # [in]: the group of each row; None: in order

    @property
    def group_size(self) -> int:
        return self.quantization.block_columns or self.num_in

    @property
    def is_symmetric(self) -> bool:
        return self.quantization.is_symmetric

    @property
    def beside(self) -> tuple[StoredTensor, ...]:
        return tuple(each for each in (self.scales, self.zeros, self.order) if each is not None)


def packed_weights(quantization: Quantization, by_name: Mapping[str, StoredTensor]) -> list[StoredTensor]:
    """Each matrix joined with its scales and zero points, all else as it is. Raises ModelFileError,
    UnsupportedModel."""
    joined = []
    for name, tensor in by_name.items():
        module, _, last = name.rpartition(".")
        if last in _PARTS and f"{module}.qweight" in by_name:
            continue
        joined.append(_joined(quantization, module, tensor, by_name) if last == "qweight" else tensor)
    return joined


def _joined(
    quantization: Quantization, module: str, tensor: StoredTensor, by_name: Mapping[str, StoredTensor]
) -> StoredTensor:
    check_not_left(quantization, tensor, module)
    check_integers(tensor)
    per_word = 32 // quantization.bits
    is_awq = quantization.method == "awq"
    num_in, num_out = tensor.shape
    num_in, num_out = (num_in, num_out * per_word) if is_awq else (num_in * per_word, num_out)
    if num_out % per_word:
        raise UnsupportedModel(
            f"{tensor.path}: {tensor.name} has {num_out} outputs, no multiple of {per_word}, which is not "
            "implemented; use the unquantised model or a GGUF"
        )
    num_groups = -(-num_in // (quantization.block_columns or num_in))

    def part(last: str, stored_as: Sequence[str], shape: tuple[int, ...]) -> StoredTensor:
        found = part_of(by_name, f"{module}.{last}", tensor, stored_as)
        check_shape(found, shape, tensor)
        return found

    packed = _Packed(
        quantization,
        module,
        num_in,
        num_out,
        part("scales", FLOATS, (num_groups, num_out)),
        part("qzeros", ("I32",), (num_groups, num_out // per_word)),
        None if is_awq or f"{module}.g_idx" not in by_name else part("g_idx", ("I32",), (num_in,)),
    )
    is_kept = f"{module}.weight".endswith(KV_UP)  # absorbed, and never rounded again

    def decode(data: Bytes, dequantised_as: str) -> HostTensor:
        return _floats(packed, data, "float32" if is_kept else dequantised_as)

    def as_raw(data: Bytes) -> HostTensor:
        return _blocks(packed, data)

    is_raw = packed.is_symmetric and quantization.bits == 4 and packed.group_size % 32 == 0 == num_in % 32
    is_raw = is_raw and not is_kept
    return replace(
        tensor,
        name=f"{module}.weight",
        shape=(num_out, num_in),
        stored_as=quantization.method,
        decode=decode,
        raw_format="q4_0" if is_raw else None,
        as_raw=as_raw if is_raw else None,
        beside=packed.beside,
    )


def _floats(packed: _Packed, data: Bytes, dequantised_as: str) -> HostTensor:
    import numpy as np

    from relevo.engine.loaders.quantized_tensors import floats_of
    from relevo.engine.ops.bfloat16 import bfloat16_bits
    from relevo.engine.ops.protocol import HostTensor

    codes, zeros, scales = _codes(packed, data), _zeros(packed), floats_of(packed.scales)
    group_of_row = _group_of_row(packed)
    is_bfloat16 = dequantised_as == "bfloat16"
    out = np.empty((packed.num_out, packed.num_in), dtype=np.uint16 if is_bfloat16 else np.float32)
    for first in range(0, packed.num_in, _MAX_ROWS):
        groups = group_of_row[first : first + _MAX_ROWS]
        values = codes[first : first + _MAX_ROWS].astype(np.float32) - zeros[groups].astype(np.float32)
        values *= scales[groups]
        out[:, first : first + _MAX_ROWS] = (bfloat16_bits(values) if is_bfloat16 else values).T
    return HostTensor(out, dequantised_as)


def _blocks(packed: _Packed, data: Bytes) -> HostTensor:
    """The same numbers as GGUF's q4_0, where rows are in order and each scale is a float16; else floats."""
    import numpy as np

    from relevo.engine.loaders.quantized_tensors import floats_of, q4_0_blocks

    _zeros(packed)  # all 8, or refused
    if np.array_equal(_group_of_row(packed), np.arange(packed.num_in) // packed.group_size):
        codes, scales = _codes(packed, data).T, floats_of(packed.scales).T
        blocks = q4_0_blocks(np.ascontiguousarray(codes), np.ascontiguousarray(scales), packed.group_size)
        if blocks is not None:
            return blocks
    return _floats(packed, data, "float32")


def _codes(packed: _Packed, data: Bytes) -> Integers:
    """[in, out], as stored."""
    words = data.view("<u4")
    if packed.quantization.method == "awq":
        return _along_columns(words.reshape(packed.num_in, -1), 4, _AWQ_COLUMNS)
    return _along_columns(words.reshape(-1, packed.num_out).T, packed.quantization.bits).T


def _zeros(packed: _Packed) -> Integers:
    """[groups, out], as they are subtracted. Raises ModelFileError."""
    import numpy as np

    from relevo.engine.loaders.quantized_tensors import bytes_of

    words = bytes_of(packed.zeros).view("<u4").reshape(packed.zeros.shape)
    quantization = packed.quantization
    if quantization.method == "awq":
        return _along_columns(words, 4, _AWQ_COLUMNS)
    last = (1 << quantization.bits) - 1
    stored = _along_columns(words, quantization.bits)
    zeros = stored + np.uint8(quantization.zero_offset) & np.uint8(last)  # 0 less one was the last
    middle = (last + 1) // 2
    if packed.is_symmetric and (zeros != middle).any():
        raise ModelFileError(
            f"{packed.zeros.path}: {packed.zeros.name} has zero points other than {middle}, which symmetric weights "
            f"have: checkpoint_format or sym of config.json is not that of the file; download both again"
        )
    return zeros


def _along_columns(words: npt.NDArray[np.uint32], bits: int, places: tuple[int, ...] | None = None) -> Integers:
    """[rows, words] -> [rows, columns]: value i of a word is its column places[i]."""
    import numpy as np

    per_word = 32 // bits
    values = np.empty((*words.shape, per_word), dtype=np.uint8)
    for index in range(per_word):
        values[..., places[index] if places else index] = words >> np.uint32(bits * index) & np.uint32((1 << bits) - 1)
    return values.reshape(len(words), -1)


def _group_of_row(packed: _Packed) -> npt.NDArray[np.int64]:
    import numpy as np

    from relevo.engine.loaders.quantized_tensors import bytes_of

    if packed.order is None:
        return np.arange(packed.num_in) // packed.group_size
    groups = bytes_of(packed.order).view("<i4").astype(np.int64)
    if groups.min() < 0 or groups.max() >= packed.scales.shape[0]:
        raise ModelFileError(
            f"{packed.order.path}: {packed.order.name} names groups from {groups.min()} to {groups.max()} and "
            f"there are {packed.scales.shape[0]}; download it again"
        )
    return groups
