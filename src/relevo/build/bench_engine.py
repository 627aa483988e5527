"""Composition root of `relevo bench engine`: a worker's runner and scheduler in this process, and the limits here.

Pins this process to the worker's cores for as long as the engine is held, as a worker does at its start.
"""

from __future__ import annotations

import contextlib
import importlib.util
import math
import os
from collections.abc import Iterator, Sequence

from relevo.bench.engine.words import EngineFacts, EngineUnderTest, MachineLimits, ModelWork
from relevo.build.backend import CPU_PATH_VARIABLE
from relevo.build.configs import WorkerConfig
from relevo.build.serve import plan_serving
from relevo.build.worker import build_fake, build_model, scheduler_config
from relevo.core.kv import DTYPE_BYTES, KVLayout
from relevo.engine.loaders.model_files import ModelFiles, StoredTensor
from relevo.engine.loaders.resolve import load_model_files
from relevo.engine.models.weight_plan import EMBEDDING, HEAD
from relevo.policy.worker.scheduler import Scheduler
from relevo.settings import Settings

KV_FILL = b"\x2e"  # a small finite number in every dtype of a cache; fresh pages would all read one page of zeroes
_FILL_BYTES = 16 << 20
_OPERANDS = {"q4_0": "int4", "q4_1": "int4", "q8_0": "int8", "F32": "f32", "F16": "f32"}  # the rest becomes bfloat16
_READ_REPEATS = 15  # passes over memory, of which the fastest counts; arbitrary
_MULTIPLY_REPEATS = 200
_MULTIPLY_ROUNDS = 1 << 13  # a fraction of a millisecond: short passes slip between interruptions


class NativeLimits:
    """Measured by the kernels of relevo_native; each size once. The fastest pass counts: it is a limit."""

    def __init__(self, path: str, cores: Sequence[int]) -> None:
        from relevo_native import _native

        self._native = _native
        self.path: str = _native.choose_path(path)[0]
        self._cores = list(cores)
        self._read: dict[int, float] = {}
        self._multiply: dict[str, float] = {}

    def read_bytes_per_s(self, num_bytes: int) -> float:
        if num_bytes not in self._read:
            self._read[num_bytes] = num_bytes / min(
                self._native.limit_read(self.path, num_bytes, self._cores, _READ_REPEATS)
            )
        return self._read[num_bytes]

    def operations_per_s(self, operand: str) -> float:
        if operand not in self._multiply:
            seconds, operations = self._native.limit_multiply(
                self.path, operand, _MULTIPLY_ROUNDS, self._cores, _MULTIPLY_REPEATS
            )
            self._multiply[operand] = operations / min(seconds)
        return self._multiply[operand]


@contextlib.contextmanager
def engine_under_test(settings: Settings, num_kv_tokens: int) -> Iterator[EngineUnderTest]:
    """Load a worker's engine, warm, with room for `num_kv_tokens` tokens. Raises StartError."""
    blocks = -(-num_kv_tokens // settings.block_size)
    asked = settings.model_copy(update={"topology": "unified", "num_kv_blocks": blocks, "enable_prefix_caching": False})
    config = plan_serving(asked).workers[0]
    with _pinned(config.cores):
        is_fake = config.model == "fake"
        runner, arena, costs, _ = build_fake(config) if is_fake else build_model(config, lambda status: None)
        if not is_fake:
            fill(arena.buffer)
        scheduling = scheduler_config(config, runner.layout, costs.costs, runner.vocab_size)
        limits = _limits(config)
        yield EngineUnderTest(
            facts=_facts(config, arena.layout, limits),
            runner=runner,
            new_scheduler=lambda: Scheduler(scheduling),
            limits=limits,
        )


def fill(memory: memoryview) -> None:
    """Write every byte, so that every page is there."""
    piece = KV_FILL * _FILL_BYTES
    for first in range(0, len(memory), _FILL_BYTES):
        part = memory[first : first + _FILL_BYTES]
        part[:] = piece[: len(part)]


@contextlib.contextmanager
def _pinned(cores: Sequence[int]) -> Iterator[None]:
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as a worker does, see build.worker
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _limits(config: WorkerConfig) -> NativeLimits | None:
    if config.device != "cpu" or importlib.util.find_spec("relevo_native") is None:
        return None
    return NativeLimits(os.environ.get(CPU_PATH_VARIABLE, ""), config.cores)


def _facts(config: WorkerConfig, layout: KVLayout, limits: MachineLimits | None) -> EngineFacts:
    work, operand = None, "f32"
    if config.model != "fake":
        files = load_model_files(config.model, revision=config.revision, download_dir=config.download_dir)
        work, operand = model_work(files, config, layout), _operand(files, config)
    return EngineFacts(
        model=config.model,
        backend=config.backend,
        path=limits.path if config.backend == "native" and isinstance(limits, NativeLimits) else "",
        dtype=config.dtype,
        quantization=config.quantization,
        kv_dtype=config.kv_cache_dtype,
        cores=config.cores,
        max_model_len=config.max_model_len,
        operand=operand,
        activation_dtype=config.activation_dtype if operand in ("int4", "int8") else "",
        work=work,
    )


def model_work(files: ModelFiles, config: WorkerConfig, layout: KVLayout) -> ModelWork:
    """From the names and shapes of the stored tensors: nothing is read."""
    model, matrices = files.config, [stored for stored in files.stored if len(stored.shape) == 2]
    head_name = HEAD if any(stored.name == HEAD for stored in matrices) else EMBEDDING
    head = [stored for stored in matrices if stored.name == head_name]
    layers = [stored for stored in matrices if stored.name not in (HEAD, EMBEDDING)]
    return ModelWork(
        weight_bytes=sum(packed_bytes(stored, config) for stored in (*layers, *head)),
        products_per_token=sum(math.prod(stored.shape) for stored in layers),
        head_products=sum(math.prod(stored.shape) for stored in head),
        attention_products=2 * model.num_layers * model.num_heads * model.head_size,
        kv_bytes_per_token=layout.bytes_per_token,
    )


def packed_bytes(stored: StoredTensor, config: WorkerConfig) -> int:
    """Of a matrix as the backend holds it."""
    rows, k = stored.shape
    if config.quantization == "int8":
        return rows * (k + 4)
    if config.backend == "native" and config.dtype == "auto":
        is_kept = stored.raw_format is not None or stored.stored_as in ("F32", "F16", "BF16")
        return stored.num_bytes if is_kept else 2 * rows * k
    return rows * k * DTYPE_BYTES[config.dtype]


def _operand(files: ModelFiles, config: WorkerConfig) -> str:
    """What most of the products multiply."""
    if config.quantization == "int8":
        return "int8"
    if config.backend != "native":
        return "f32"
    if config.dtype != "auto":
        return "bf16" if config.dtype == "bfloat16" else "f32"
    sizes: dict[str, int] = {}
    for stored in files.stored:
        if len(stored.shape) == 2 and stored.name != EMBEDDING:
            name = _OPERANDS.get(stored.raw_format or stored.stored_as, "bf16")
            sizes[name] = sizes.get(name, 0) + math.prod(stored.shape)
    return max(sizes, key=lambda operand: sizes[operand])
