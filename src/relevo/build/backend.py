"""Names the backends: which one a worker computes with, whether it is installed, and what it runs on here."""

from __future__ import annotations

import importlib.util
import logging
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from relevo.build.configs import WorkerConfig
from relevo.core.errors import StartError

if TYPE_CHECKING:  # a look at what is installed computes nothing
    from relevo.engine.ops.protocol import Ops
    from relevo.engine.ops.ranks import RankSums

log = logging.getLogger("relevo.engine")

CPU_PATH_VARIABLE = "RELEVO_CPU_PATH"  # the name of an instruction path: take it instead of the best one
_NO_NATIVE = (
    "the CPU kernels are not installed; run: pip install 'relevo[cpu]' (in a checkout, with g++ and python3-dev: "
    "pip install ./native), or compute through torch: pip install torch and --backend torch"
)
_NO_TORCH = "{} needs torch, which is not installed; run: pip install torch"


def check_installed(backend: str) -> None:
    """Raises StartError, with what to install. Imports nothing."""
    if backend == "native" and importlib.util.find_spec("relevo_native") is None:
        raise StartError(_NO_NATIVE)
    if backend == "torch" and importlib.util.find_spec("torch") is None:
        raise StartError(_NO_TORCH.format("--backend torch"))


def check_collectives_installed(collectives: str) -> None:
    """Raises StartError, with what to install. Imports nothing."""
    if collectives != "shm" and importlib.util.find_spec("torch") is None:
        raise StartError(_NO_TORCH.format(f"--collectives {collectives}"))


def make_ops(config: WorkerConfig, cores: Sequence[int] | None = None, ranks: RankSums | None = None) -> Ops:
    """The operations of a worker's backend. `cores`: None: all of the worker's. `ranks`: that sums are made with; None:
    there are no others. Raises StartError."""
    cores = config.cores if cores is None else cores
    if config.backend == "torch":
        check_installed("torch")
        from relevo.engine.ops.torch.ops import TorchOps

        return TorchOps(dtype=config.dtype, device=config.device, num_threads=len(cores), ranks=ranks)
    check_installed("native")
    from relevo_native import _native

    from relevo.engine.ops.native.ops import NativeOps

    path = os.environ.get(CPU_PATH_VARIABLE, "")
    ops = NativeOps(
        dtype=config.dtype,
        cores=cores,
        quantization=config.quantization,
        activation_dtype=config.activation_dtype,
        path=path,
        ranks=ranks,
    )
    log.info("CPU path %s: %s", *_native.choose_path(path))
    return ops


def instruction_path() -> str:
    """Of the CPU kernels, here; empty where they are not installed or cannot run."""
    if importlib.util.find_spec("relevo_native") is None:
        return ""
    from relevo_native import _native

    try:
        return str(_native.choose_path(os.environ.get(CPU_PATH_VARIABLE, ""))[0])
    except ValueError:
        return ""


def describe_cpu() -> str:
    """Which instruction path runs here, why, and what else could; one line each. Raises StartError."""
    check_installed("native")
    from importlib import metadata

    from relevo_native import _native

    try:
        path, reason = _native.choose_path(os.environ.get(CPU_PATH_VARIABLE, ""))
    except ValueError as error:
        raise StartError(f"{CPU_PATH_VARIABLE}: {error}") from error
    available = ", ".join(_native.available_paths())
    return (
        f"relevo-native {metadata.version('relevo-native')}\n"
        f"path {path}: {reason}\n"
        f"available: {available} ({CPU_PATH_VARIABLE}=... takes another)"
    )
