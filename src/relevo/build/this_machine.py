"""The processors of this machine as what a plan of memory is made for: one worker, the memory that is free for it."""

from __future__ import annotations

import re

from relevo.build.hardware import detect_hardware
from relevo.core.errors import SettingsError
from relevo.policy.perf.devices import Device
from relevo.policy.scaling.inventory import Holding

_WRITTEN = re.compile(r"(?:(\d+)\s*x\s*)?cpu", re.IGNORECASE)


def is_this_machine(devices: str) -> bool:
    """Raises SettingsError for more than one of it."""
    written = _WRITTEN.fullmatch(devices.strip())
    if written is not None and written.group(1) not in (None, "1"):
        raise SettingsError(f"--devices {devices}: there is one machine here, whose memory its ranks share; write cpu")
    return written is not None


def this_machine() -> Holding:
    """No figure of it but its memory is known here."""
    free_bytes = float(detect_hardware("cpu").available_memory_bytes)
    device = Device(name="cpu", memory_bytes=free_bytes, read_bytes_per_s=0.0, bf16_flops=0.0, link_bytes_per_s=0.0)
    return Holding(device=device, num_devices=1)
