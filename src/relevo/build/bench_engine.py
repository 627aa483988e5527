"""Composition root of `relevo bench engine`: a worker's runner and scheduler in this process, and the limits here.

Pins this process to the worker's cores for as long as the engine is held, as a worker does at its start.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence

from relevo.bench.engine.words import EngineFacts, EngineUnderTest, MachineLimits
from relevo.build.configs import WorkerConfig
from relevo.build.machine_limits import NativeLimits, native_limits
from relevo.build.model_work import input_dtype, model_work, operand
from relevo.build.serve import plan_serving
from relevo.build.worker import Report, build_fake, build_model, scheduler_config
from relevo.core.kv import KVLayout
from relevo.engine.loaders.resolve import load_model_files
from relevo.policy.worker.scheduler import Scheduler
from relevo.settings import Settings
from relevo.telemetry.progress import SILENT, Progress
from relevo.wire.status import Status

KV_FILL = b"\x2e"  # a small finite number in every dtype of a cache; fresh pages would all read one page of zeroes
_FILL_BYTES = 16 << 20


@contextlib.contextmanager
def engine_under_test(settings: Settings, num_kv_tokens: int, progress: Progress = SILENT) -> Iterator[EngineUnderTest]:
    """Load a worker's engine, warm, with room for `num_kv_tokens` tokens. Raises StartError."""
    blocks = -(-num_kv_tokens // settings.block_size)
    asked = settings.model_copy(update={"topology": "unified", "num_kv_blocks": blocks, "enable_prefix_caching": False})
    config = plan_serving(asked).workers[0]
    with _pinned(config.cores):
        is_fake = config.model == "fake"
        built = build_fake(config) if is_fake else build_model(config, told(progress))
        runner, arena = built.runner, built.arena
        if not is_fake:
            fill(arena.buffer)
        scheduling = scheduler_config(config, runner.layout, built.costs.costs, runner.vocab_size)
        limits = native_limits(config)
        yield EngineUnderTest(
            facts=_facts(config, arena.layout, limits),
            runner=runner,
            new_scheduler=lambda: Scheduler(scheduling),
            limits=limits,
        )


def told(progress: Progress) -> Report:
    """What a worker tells its supervisor of its start, told to a person."""

    def report(status: Status) -> None:
        if status.kind == "progress":
            progress.rename(status.message)
            progress.reach(status.num_done, status.num_total)

    return report


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


def _facts(config: WorkerConfig, layout: KVLayout, limits: MachineLimits | None) -> EngineFacts:
    work, multiplied = None, "f32"
    if config.model != "fake":
        files = load_model_files(config.model, revision=config.revision, download_dir=config.download_dir)
        work, multiplied = model_work(files, config, layout), operand(files, config)
    return EngineFacts(
        model=config.model,
        backend=config.backend,
        path=limits.path if config.backend == "native" and isinstance(limits, NativeLimits) else "",
        dtype=config.dtype,
        quantization=config.quantization,
        kv_dtype=config.kv_cache_dtype,
        cores=config.cores,
        max_model_len=config.max_model_len,
        operand=multiplied,
        activation_dtype=input_dtype(multiplied, config),
        work=work,
    )
