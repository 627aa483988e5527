"""Tensors and the arrays that numpy holds them in: it has no bfloat16, whose bits are uint16 there."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch


def from_bits(array: npt.NDArray[Any], dtype: torch.dtype) -> torch.Tensor:
    """Shares the array's memory."""
    if dtype is torch.bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def to_bits(tensor: torch.Tensor) -> npt.NDArray[Any]:
    """Shares its memory, if that is the host's."""
    host = tensor.cpu()
    if host.dtype is torch.bfloat16:
        bits: npt.NDArray[Any] = host.view(torch.int16).numpy().view(np.uint16)
        return bits
    values: npt.NDArray[Any] = host.numpy()
    return values
