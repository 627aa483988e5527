"""On which cores this process computes."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from relevo.engine.ops.protocol import Ops


def compute_here(cores: Sequence[int]) -> None:
    """Before any library counts cores for its threads."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)
    # OpenMP threads that spin at barriers starve each other as soon as anything else wants a core: measured ten times
    # slower steps on two cores with one busy neighbour. Read when torch loads its OpenMP library.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def compute_on(ops: Ops, cores: Sequence[int]) -> bool:
    """All threads of this process from now on. False: it does not compute on cores."""
    pin_threads(cores)
    return ops.use_cores(cores)


def pin_threads(cores: Sequence[int]) -> None:
    """All threads that this process has; those of a pool that pins its own are pinned by it afterwards."""
    if not hasattr(os, "sched_setaffinity"):
        return
    for thread in Path("/proc/self/task").iterdir():
        with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
            os.sched_setaffinity(int(thread.name), cores)
