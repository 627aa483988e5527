"""On which cores this process computes."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path


def compute_here(cores: Sequence[int]) -> None:
    """Before any library counts cores for its threads."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)
    # OpenMP threads that spin at barriers starve each other as soon as anything else wants a core: measured ten times
    # slower steps on two cores with one busy neighbour. Read when torch loads its OpenMP library.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def cores_of_rank(cores: Sequence[int], rank: int, size: int) -> Sequence[int]:
    """Of one of so many that compute at the same time: as many for each, since a sum waits for the slowest. What is
    left over stays idle; with fewer cores than ranks some share one."""
    each = max(1, len(cores) // size)
    first = rank * each % len(cores)
    return cores[first : first + each]


def pin_threads(cores: Sequence[int]) -> None:
    """All threads that this process has; those of a pool that pins its own are pinned by it afterwards."""
    if not hasattr(os, "sched_setaffinity"):
        return
    for thread in Path("/proc/self/task").iterdir():
        with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
            os.sched_setaffinity(int(thread.name), cores)
