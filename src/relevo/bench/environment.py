"""What a measurement must say about where it was made: command line (without keys), versions, machine."""

from __future__ import annotations

import os
import platform
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from relevo.bench.html.secrets import redacted_command

FEATURES = (  # of which kernels make use, as the kernel calls them
    *("avx2", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8", "amx_bf16"),
    *("asimddp", "i8mm", "bf16", "sve"),
)
PACKAGES = ("relevo", "relevo-native", "torch", "numpy", "aiohttp", "uvicorn")


def describe_environment() -> dict[str, Any]:
    """Facts of this process and box as JSON; what cannot be found is left out."""
    return {
        "command": ["relevo", *redacted_command(sys.argv[1:])],
        "started_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "os": _os_name(),
        "kernel": platform.release(),
        "cpu_model": cpu_model(),
        "cpu_features": cpu_features(),
        "num_cpus": os.cpu_count(),
        "num_usable_cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "usable_cpus": sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "memory_bytes": _memory_bytes(),
        "omp_num_threads": os.environ.get("OMP_NUM_THREADS"),
        "versions": {name: found for name in PACKAGES if (found := _version(name)) is not None},
    }


def cpu_model() -> str:
    """The processor's own name where the system tells it."""
    return _cpuinfo("model name") or platform.processor() or platform.machine()


def cpu_features() -> list[str]:
    """Of FEATURES, what the processor has."""
    found = (_cpuinfo("flags") or _cpuinfo("Features")).split()
    return [name for name in FEATURES if name in found]


def _cpuinfo(name: str) -> str:
    """Of the first processor; empty where the system does not tell it."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.partition(":")[0].strip() == name:
                return line.partition(":")[2].strip()
    return ""


def _os_name() -> str:
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        return platform.system()


def _memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return None


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
