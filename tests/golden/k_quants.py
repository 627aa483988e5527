"""Matrices as Q4_K, Q5_K and Q6_K, which the `gguf` package does not write: rounded plainly, not searched for."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType, quantize

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]
K_QUANTS = (GGMLQuantizationType.Q4_K, GGMLQuantizationType.Q5_K, GGMLQuantizationType.Q6_K)


def quantised(values: Floats, kind: GGMLQuantizationType) -> Bytes:
    """uint8 [..., bytes of a row]; rows of 256 n values for K_QUANTS."""
    if kind not in K_QUANTS:
        return quantize(values, kind)
    blocks = values.reshape(-1, 256)
    made = _q6_k(blocks) if kind is GGMLQuantizationType.Q6_K else _raised(blocks, kind)
    return made.reshape(*values.shape[:-1], -1)


def _raised(blocks: Floats, kind: GGMLQuantizationType) -> Bytes:
    most = 31 if kind is GGMLQuantizationType.Q5_K else 15
    parts = blocks.reshape(-1, 8, 32)
    least = np.minimum(parts.min(axis=2), 0)
    steps = (parts.max(axis=2) - least) / most
    unit, least_unit = _half(steps.max(axis=1) / 63), _half(-least.min(axis=1) / 63)
    scales = np.clip(np.rint(_over(steps, unit)), 0, 63).astype(np.uint8)
    minima = np.clip(np.rint(_over(-least, least_unit)), 0, 63).astype(np.uint8)
    raised = parts + (minima * least_unit[:, None].astype(np.float32))[:, :, None]
    step = (scales * unit[:, None].astype(np.float32))[:, :, None]
    q = np.clip(np.rint(raised / np.where(step == 0, 1, step)), 0, most).astype(np.uint8)
    low, high = q[:, 0::2] & 15, q[:, 1::2] & 15
    codes = np.concatenate(
        [
            scales[:, :4] | (scales[:, 4:] >> 4) << 6,
            minima[:, :4] | (minima[:, 4:] >> 4) << 6,
            scales[:, 4:] & 15 | (minima[:, 4:] & 15) << 4,
        ],
        axis=1,
    )
    halves = np.stack([unit, least_unit], axis=1).view(np.uint8)
    nibbles = (low | high << 4).reshape(len(blocks), 128)
    if most == 15:
        return np.concatenate([halves, codes, nibbles], axis=1)
    fifths = np.packbits(q >> 4, axis=1, bitorder="little").reshape(len(blocks), 32)
    return np.concatenate([halves, codes, fifths, nibbles], axis=1)


def _q6_k(blocks: Floats) -> Bytes:
    parts = blocks.reshape(-1, 16, 16)
    steps = np.abs(parts).max(axis=2) / 31
    unit = _half(steps.max(axis=1) / 127)
    scales = np.clip(np.rint(_over(steps, unit)), 0, 127).astype(np.int8)
    step = (scales * unit[:, None].astype(np.float32))[:, :, None]
    q = (np.clip(np.rint(parts / np.where(step == 0, 1, step)), -32, 31) + 32).astype(np.uint8).reshape(-1, 2, 4, 32)
    low = q & 15
    low_bytes = low[:, :, :2] | low[:, :, 2:] << 4
    high = q >> 4
    high_bytes = high[:, :, 0] | high[:, :, 1] << 2 | high[:, :, 2] << 4 | high[:, :, 3] << 6
    count = len(blocks)
    return np.concatenate(
        [
            low_bytes.reshape(count, 128),
            high_bytes.reshape(count, 64),
            scales.view(np.uint8),
            unit[:, None].view(np.uint8),
        ],
        axis=1,
    )


def _half(values: Floats) -> npt.NDArray[np.float16]:
    return values.astype(np.float16)


def _over(values: Floats, unit: npt.NDArray[np.float16]) -> Floats:
    units = unit.astype(np.float32)[:, None]
    return values / np.where(units == 0, 1, units)
