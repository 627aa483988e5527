"""What this process may use of the machine: cores, memory, CUDA devices, and where each number comes from.

The least of the machine's own and the container's (`build.container`). `detect_hardware` reads, the rest is pure.
"""

from __future__ import annotations

import importlib.util
import math
import os
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from relevo.build.container import ContainerLimits, container_limits, files_below, host_memory_bytes

_GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """What the machine offers to the workers."""

    cores: tuple[int, ...]
    available_memory_bytes: int
    has_bf16: bool
    num_cuda_devices: int = 0
    cuda_memory_bytes: int = 0
    cores_in_quota: tuple[int, ...] = ()  # those of `cores` that a CPU quota keeps busy; empty: all of them
    memory_reason: str = ""  # what limits `available_memory_bytes`, for a sentence
    notes: tuple[str, ...] = ()  # for the start log: what was found and what follows


def detect_hardware(device: str, root: Path = Path("/")) -> Hardware:
    """CUDA is asked for only where a device node exists. `root`: where /proc and /sys are."""
    read = files_below(root)
    limits = container_limits(read)
    allowed = usable_cores(_affinity(), limits)
    memory_bytes, memory_reason = usable_memory(host_memory_bytes(read) or _half_of_memory(), limits)
    in_quota = cores_in_quota(allowed, limits, random.randrange(len(allowed)))
    num_devices, device_memory_bytes = 0, 0
    if device != "cpu" and Path("/dev/nvidia0").exists() and importlib.util.find_spec("torch") is not None:
        from relevo.engine.ops.torch.device import cuda_devices

        num_devices, device_memory_bytes = cuda_devices()
    return Hardware(
        cores=allowed,
        available_memory_bytes=memory_bytes,
        has_bf16=_has_bf16(read("/proc/cpuinfo") or ""),
        num_cuda_devices=num_devices,
        cuda_memory_bytes=device_memory_bytes,
        cores_in_quota=in_quota,
        memory_reason=memory_reason,
        notes=limit_notes(limits, allowed, in_quota or allowed, memory_bytes),
    )


def usable_cores(allowed: Sequence[int], limits: ContainerLimits) -> tuple[int, ...]:
    """Those of the process that its control group has too."""
    if limits.cores is None:
        return tuple(allowed)
    return tuple(core for core in allowed if core in limits.cores.cores) or tuple(allowed)


def cores_in_quota(cores: Sequence[int], limits: ContainerLimits, first: int) -> tuple[int, ...]:
    """As many neighbours as the quota pays for in full, from the one at `first` on: containers that are all alike would
    otherwise compute on the same first cores. More threads than that are stopped together for a part of every period.
    Empty: there is no quota, or it pays for all."""
    if limits.cpu is None or limits.cpu.num_cpus >= len(cores):
        return ()
    count = max(1, math.floor(limits.cpu.num_cpus))
    return tuple(sorted(cores[(first + step) % len(cores)] for step in range(count)))


def usable_memory(host_bytes: int, limits: ContainerLimits) -> tuple[int, str]:
    """What is free, and what limits it."""
    memory = limits.memory
    if memory is None or memory.free_bytes >= host_bytes:
        return host_bytes, "that the machine has free"
    return memory.free_bytes, f"that are left of the container's {gib(memory.limit_bytes)} GiB ({memory.file})"


def limit_notes(
    limits: ContainerLimits, allowed: Sequence[int], used: Sequence[int], memory_bytes: int
) -> tuple[str, ...]:
    """One line for each limit that binds."""
    notes = []
    memory, cpu = limits.memory, limits.cpu
    if memory is not None and memory.free_bytes <= memory_bytes:
        notes.append(
            f"the container may use {gib(memory.limit_bytes)} GiB of memory ({memory.file}), {gib(memory_bytes)} GiB "
            f"are free: weights, KV caches and processes are planned within"
        )
    if cpu is not None and len(used) < len(allowed):
        plural = "s" if len(used) > 1 else ""
        notes.append(
            f"the container may use {cpu.num_cpus:g} of {len(allowed)} cores' time ({cpu.file}): workers get "
            f"{len(used)} core{plural}"
        )
    elif cpu is not None and cpu.num_cpus < 1:
        notes.append(
            f"the container may use {cpu.num_cpus:g} of a core's time ({cpu.file}): tokens will come in bursts"
        )
    return tuple(notes)


def gib(num_bytes: int) -> str:
    return f"{num_bytes / _GIB:.2f}"


def _affinity() -> tuple[int, ...]:
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def _half_of_memory() -> int:
    """Where the system does not say what is free."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def _has_bf16(cpuinfo: str) -> bool:
    return "amx_bf16" in cpuinfo or "avx512_bf16" in cpuinfo or " bf16" in cpuinfo
