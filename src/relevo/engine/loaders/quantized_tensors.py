"""The arithmetic of quantised weights of a folder: bytes and scales become floats, or a format that backends multiply.

Sources: OCP's 8-bit floating point specification (E4M3: bias 7, no infinities); compressed-tensors' pack-quantized
(value i of eight at bits 4i of an integer, 8 above what is meant); the papers' own code for GPTQ and AWQ.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from relevo.engine.loaders.model_files import StoredTensor, ends_before
from relevo.engine.ops.bfloat16 import bfloat16_bits
from relevo.engine.ops.protocol import HostTensor

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]


def _e4m3_values() -> Floats:
    code = np.arange(256)
    exponent, mantissa = code >> 3 & 15, code & 7
    size = np.where(exponent == 0, np.ldexp(mantissa / 8, -6), np.ldexp(1 + mantissa / 8, exponent - 7))
    values = np.where(code & 128, -size, size)
    values[[127, 255]] = np.nan
    return values.astype(np.float32)


E4M3 = _e4m3_values()


def dequantise(
    data: Bytes,
    method: str,
    shape: tuple[int, ...],
    scales: StoredTensor,
    blocks: tuple[int, int],
    dequantised_as: str,
) -> HostTensor:
    """Products of float32, row by row of blocks, so that a matrix of bfloat16 is never in memory as float32."""
    by_block, (rows, columns) = floats_of(scales), shape
    out: npt.NDArray[Any] = np.empty(shape, dtype=np.uint16 if dequantised_as == "bfloat16" else np.float32)
    stored = data.reshape(rows, -1)
    step = blocks[0] if method == "fp8" else 64  # arbitrary: rows at a time
    for first in range(0, rows, step):
        part = stored[first : first + step]
        values = E4M3[part] if method == "fp8" else _nibbles(part).astype(np.float32) - np.float32(8)
        own = by_block[first // blocks[0]][None] if method == "fp8" else by_block[first : first + step]
        values = values * np.repeat(own, blocks[1], axis=1)[:, :columns]
        out[first : first + step] = bfloat16_bits(values) if dequantised_as == "bfloat16" else values
    return HostTensor(out, dequantised_as)


def as_q4_0(data: Bytes, shape: tuple[int, ...], scales: StoredTensor, group_size: int) -> HostTensor:
    """The same numbers as GGUF's q4_0, where each scale is a float16; else floats."""
    blocks = q4_0_blocks(_nibbles(data.reshape(shape[0], -1)), floats_of(scales), group_size)
    return dequantise(data, "int4", shape, scales, (1, group_size), "float32") if blocks is None else blocks


def q4_0_blocks(codes: Bytes, scales: Floats, group_size: int) -> HostTensor | None:
    """Of codes [rows, columns] that are 8 above what is meant, and scales [rows, groups] of a multiple of 32 columns
    each. None: a scale is no float16."""
    with np.errstate(over="ignore"):
        halves = scales.astype(np.float16)
    if not np.array_equal(halves.astype(np.float32), scales):
        return None
    halves = np.repeat(halves, group_size // 32, axis=1)[:, : codes.shape[1] // 32]
    values = codes.reshape(len(codes), -1, 32)
    blocks = np.empty((*values.shape[:2], 18), dtype=np.uint8)
    blocks[..., :2] = halves[..., None].view(np.uint8)
    blocks[..., 2:] = values[..., :16] | values[..., 16:] << 4
    return HostTensor(blocks.reshape(len(codes), -1), "q4_0")


def _nibbles(packed: Bytes) -> Bytes:
    """[rows, bytes] -> [rows, 2 * bytes]: little-endian integers hold the first value in the low half of a byte."""
    return np.stack((packed & 15, packed >> 4), axis=-1).reshape(len(packed), -1)


def floats_of(scales: StoredTensor) -> Floats:
    return scales.decode(bytes_of(scales), "float32").floats()


def bytes_of(tensor: StoredTensor) -> Bytes:
    data = np.fromfile(tensor.path, dtype=np.uint8, count=tensor.num_bytes, offset=tensor.offset)
    if len(data) < tensor.num_bytes:
        raise ends_before(tensor.path, tensor.offset + tensor.num_bytes)
    return data
