"""What the cores of a worker can read and multiply at most, measured by the kernels of relevo_native.

`relevo bench engine` measures long and exactly, a worker at its start in a moment: its utilisation is a share of these.
"""

from __future__ import annotations

import importlib.util
import logging
import os
from collections.abc import Sequence
from dataclasses import replace

from relevo import __version__
from relevo.build.backend import CPU_PATH_VARIABLE
from relevo.build.configs import WorkerConfig
from relevo.build.known_limits import best_known, cache_folder
from relevo.build.model_work import input_dtype
from relevo.core.events import UNKNOWN_LIMITS, WorkerLimits
from relevo.policy.perf.model_work import ModelWork

log = logging.getLogger("relevo.engine")

_READ_REPEATS = 15  # passes over memory, of which the fastest counts; arbitrary
_MULTIPLY_REPEATS = 200
_MULTIPLY_ROUNDS = 1 << 13  # a fraction of a millisecond: short passes slip between interruptions
_START_READ_BYTES = 48 << 20  # a pass at a worker's start, at most: more than a core's share of caches. Arbitrary
_START_READ_REPEATS = 3  # measured with the next, on two cores of a busy Zen 3: 40 to 75 ms
_START_MULTIPLY_REPEATS = 100


class NativeLimits:
    """Measured whenever it is asked. The fastest pass of all counts: it is a limit, also of what was asked before."""

    def __init__(
        self,
        path: str,
        cores: Sequence[int],
        read_repeats: int = _READ_REPEATS,
        multiply_repeats: int = _MULTIPLY_REPEATS,
    ) -> None:
        from relevo_native import _native

        self._native = _native
        self.path: str = _native.choose_path(path)[0]
        self._cores = list(cores)
        self._read_repeats, self._multiply_repeats = read_repeats, multiply_repeats
        self._read: dict[int, float] = {}
        self._multiply: dict[str, float] = {}

    def read_bytes_per_s(self, num_bytes: int) -> float:
        seconds = min(self._native.limit_read(self.path, num_bytes, self._cores, self._read_repeats))
        self._read[num_bytes] = max(self._read.get(num_bytes, 0.0), num_bytes / seconds)
        return self._read[num_bytes]

    def operations_per_s(self, operand: str) -> float:
        seconds, operations = self._native.limit_multiply(
            self.path, operand, _MULTIPLY_ROUNDS, self._cores, self._multiply_repeats
        )
        self._multiply[operand] = max(self._multiply.get(operand, 0.0), operations / min(seconds))
        return self._multiply[operand]


def native_limits(config: WorkerConfig) -> NativeLimits | None:
    """None: nothing here can measure them."""
    return NativeLimits(os.environ.get(CPU_PATH_VARIABLE, ""), config.cores) if _can_measure(config) else None


def limits_at_start(config: WorkerConfig, work: ModelWork, operand: str) -> WorkerLimits:
    """Of a worker whose steps do `work` on products of `operand`. One that cannot be measured serves without."""
    if not _can_measure(config):
        return UNKNOWN_LIMITS
    path = os.environ.get(CPU_PATH_VARIABLE, "")
    limits = NativeLimits(path, config.cores, _START_READ_REPEATS, _START_MULTIPLY_REPEATS)
    num_bytes = min(work.weight_bytes, _START_READ_BYTES)
    kind = f"{len(config.cores)} cores, {limits.path}, {operand}, {num_bytes} bytes, relevo {__version__}"
    try:
        known = best_known(
            cache_folder(),
            kind,
            lambda: WorkerLimits(
                product_ops_per_s=limits.operations_per_s(operand), read_bytes_per_s=limits.read_bytes_per_s(num_bytes)
            ),
        )
    except (MemoryError, OSError, RuntimeError, ValueError) as error:
        log.warning("the limits of this worker's cores are not known, nor its utilisation: %s", error)
        return UNKNOWN_LIMITS
    if input_dtype(operand, config) == "int16" and known.product_ops_per_s:
        # an instruction takes half as many inputs of 16 bits as of 8
        return replace(known, product_ops_per_s=known.product_ops_per_s / 2)
    return known


def _can_measure(config: WorkerConfig) -> bool:
    return config.device == "cpu" and importlib.util.find_spec("relevo_native") is not None
