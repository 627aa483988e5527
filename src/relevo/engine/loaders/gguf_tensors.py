"""What becomes of the bytes of a GGUF file's tensors.

Owns the order of rows that llama.cpp's converter changed (`num_heads`: of the tensors it changed, else None); rows move
whole, so this works on quantised bytes too. The arithmetic of the quantisations is the `gguf` package's, imported only
for a tensor that has to be dequantised.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from relevo.core.errors import ModelFileError, UnsupportedModel
from relevo.engine.loaders.gguf_metadata import GgmlType
from relevo.engine.models.weight_forms import in_halves
from relevo.engine.ops.bfloat16 import bfloat16_bits
from relevo.engine.ops.protocol import HostTensor

_RUN_ELEMENTS = 131072  # measured on a core with 512 KB of cache; a multiple of every block size
_FLOATS = {"F32": ("<f4", "float32"), "F16": ("<f2", "float16"), "BF16": ("<u2", "bfloat16")}  # numpy's word, ours
_NO_SCALE = 255  # of MXFP4, the first byte of a block


def decode(
    data: npt.NDArray[np.uint8],
    ggml_type: GgmlType,
    shape: tuple[int, ...],
    num_heads: int | None,
    dequantised_as: str,
    what: str,
) -> HostTensor:
    """Floats as they are, quantised ones as float32 or bfloat16. Raises UnsupportedModel or
    ModelFileError, which begins with `what`."""
    if ggml_type.name in _FLOATS:
        numpy_type, dtype = _FLOATS[ggml_type.name]
        return HostTensor(_unpermute(data.view(numpy_type).reshape(shape), num_heads), dtype)
    if ggml_type.name == "MXFP4" and (data[:: ggml_type.block_bytes] == _NO_SCALE).any():
        raise ModelFileError(f"{what} has scales that are no numbers; download it again")
    try:
        values = _dequantise(data, ggml_type, dequantised_as).reshape(shape)
    except NotImplementedError as error:
        raise UnsupportedModel(f"{what} is stored as {ggml_type.name}, which cannot be dequantised") from error
    return HostTensor(_unpermute(values, num_heads), dequantised_as)


def as_stored(data: npt.NDArray[np.uint8], ggml_type: GgmlType, num_rows: int, num_heads: int | None) -> HostTensor:
    """A matrix in one of the formats that backends multiply."""
    return HostTensor(_unpermute(data.reshape(num_rows, -1), num_heads), ggml_type.name.lower())


def _unpermute(array: npt.NDArray[Any], num_heads: int | None) -> npt.NDArray[Any]:
    """GGUF pairs rows (2i, 2i + 1) for rotation, Hugging Face rows (i, i + D / 2). None: nothing was reordered."""
    return array if num_heads is None else in_halves(array, num_heads)


def _dequantise(data: npt.NDArray[np.uint8], ggml_type: GgmlType, dequantised_as: str) -> npt.NDArray[Any]:
    """float32, or the bits of bfloat16.

    In runs that stay in the processor's cache: two to three times as fast as the whole tensor at once, and an embedding
    of bfloat16 is never in memory as float32.
    """
    from gguf.constants import GGMLQuantizationType
    from gguf.quants import dequantize

    run_bytes = _RUN_ELEMENTS // ggml_type.block_elements * ggml_type.block_bytes
    num_values = len(data) // ggml_type.block_bytes * ggml_type.block_elements
    rounds = dequantised_as == "bfloat16"
    values = np.empty(num_values, dtype=np.uint16 if rounds else np.float32)
    for index, start in enumerate(range(0, len(data), run_bytes)):
        run = dequantize(data[start : start + run_bytes], GGMLQuantizationType[ggml_type.name])
        values[index * _RUN_ELEMENTS : index * _RUN_ELEMENTS + len(run)] = bfloat16_bits(run) if rounds else run
    return values
