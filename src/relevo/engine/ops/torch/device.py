"""Which CUDA devices torch sees. Costs an import of torch: ask only where a device may be."""

from __future__ import annotations

import torch


def cuda_devices() -> tuple[int, int]:
    """Number of devices, and the memory of the smallest in bytes; (0, 0) without one."""
    if not torch.cuda.is_available():
        return 0, 0
    num_devices = torch.cuda.device_count()
    return num_devices, min(torch.cuda.get_device_properties(index).total_memory for index in range(num_devices))
