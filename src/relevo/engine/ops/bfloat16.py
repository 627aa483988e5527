"""bfloat16 in numpy, which has none: an array of it is held as its uint16 bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


def bfloat16_bits(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """Rounded to nearest, ties to even. Finite values only. Writes into `values`."""
    bits = values.view(np.uint32)
    bits += (bits >> np.uint32(16) & np.uint32(1)) + np.uint32(0x7FFF)
    return (bits >> np.uint32(16)).astype(np.uint16)


def bfloat16_values(bits: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    return (bits.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
