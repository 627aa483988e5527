"""Composition root of a worker process: names the concrete classes of one worker together."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from relevo.core.ids import WorkerId
from relevo.core.kv import KVLayout
from relevo.core.ports import KVTransport, ModelRunner
from relevo.engine.loop import EngineLoop, WorkerIdentity
from relevo.kv.arena import Arena
from relevo.kv.transports.shm import ShmTransport
from relevo.kv.transports.tcp import TcpTransport
from relevo.policy.perf_model import StepCostModel
from relevo.policy.scheduler import Scheduler, SchedulerConfig
from relevo.build.resolve import WorkerConfig, kv_layout
from relevo.supervisor import Status
from relevo.telemetry.log import configure
from relevo.wire.server import WireServer

Report = Callable[[Status], None]


class MonotonicClock:
    """CLOCK_MONOTONIC: one time for all processes of a box."""

    def now_ns(self) -> int:
        return time.monotonic_ns()


def run_worker(config: WorkerConfig, report: Report) -> None:
    """Load, listen, serve until drained. Raises StartError when the model cannot be loaded."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, config.cores)  # before any library counts cores for its threads
    configure(config.log_level, config.worker_id)
    runner, arena, costs = build_fake(config) if config.model == "fake" else build_model(config, report)
    server = WireServer()
    transport = _transport(config, arena, runner.layout, server.wake)
    loop = EngineLoop(
        identity=WorkerIdentity(
            worker_id=WorkerId(config.worker_id),
            epoch=config.epoch,
            pid=os.getpid(),
            role=config.role,
            model_name=config.model,
        ),
        scheduler=Scheduler(_scheduler_config(config, transport.zero_copy)),
        runner=runner,
        transport=transport,
        server=server,
        costs=costs,
        clock=MonotonicClock(),
    )
    server.on_connect = loop.hello
    server.listen(config.address)
    report(Status(kind="ready", worker_id=config.worker_id))
    try:
        loop.run()
    finally:
        server.close()
        transport.close()


def build_fake(config: WorkerConfig) -> tuple[ModelRunner, Arena, StepCostModel]:
    """The engine without a model: deterministic tokens from the KV content, no torch."""
    from relevo.core.events import StepCosts
    from relevo.engine.fake_runner import FAKE_MODEL, FakeRunner

    layout = kv_layout(FAKE_MODEL, "fake", "uint64", config.block_size)
    arena = _arena(config, layout)
    costs = StepCosts(base_s=config.fake_base_s, per_token_s=config.fake_per_token_s, per_kv_token_s=0.0)
    runner = FakeRunner(arena, costs=costs, vocab_size=FAKE_MODEL.vocab_size, max_model_len=config.max_model_len)
    return runner, arena, StepCostModel()


def build_model(config: WorkerConfig, report: Report) -> tuple[ModelRunner, Arena, StepCostModel]:
    """The real engine. Warm: lazy initialisation is done, step costs are measured."""
    from relevo.engine.loaders.model_files import load_model_files
    from relevo.engine.ops.torch.backend import TorchOps
    from relevo.engine.runner import DecoderRunner
    from relevo.engine.sampler import Sampler

    files = load_model_files(config.model, revision=config.revision, download_dir=config.download_dir)
    layout = kv_layout(files.config, files.model_hash, config.kv_cache_dtype, config.block_size)
    arena = _arena(config, layout)
    ops = TorchOps(device=config.device, dtype=config.dtype, num_threads=len(config.cores))

    def progress(num_bytes_done: int, num_bytes_total: int) -> None:
        report(Status(kind="progress", num_done=num_bytes_done, num_total=num_bytes_total))

    runner = DecoderRunner(
        files=files,
        ops=ops,
        arena=arena,
        sampler=Sampler(files.config.vocab_size),
        max_model_len=config.max_model_len,
        scratch_block_ids=list(range(config.first_block_id, config.first_block_id + config.num_blocks)),
        progress=progress,
    )
    runner.warm_up()
    costs = StepCostModel()
    for num_tokens, num_kv_tokens, step_s in runner.measure((1, 16, 64)):
        costs.observe(num_tokens, num_kv_tokens, step_s)
    return runner, arena, costs


def _arena(config: WorkerConfig, layout: KVLayout) -> Arena:
    if config.arena_fd >= 0:
        return Arena.attach(config.arena_fd, layout, config.num_arena_blocks)
    return Arena.create(layout, config.num_arena_blocks, shared=False)


def _transport(config: WorkerConfig, arena: Arena, layout: KVLayout, wake: Callable[[], None]) -> KVTransport:
    if config.transport == "shm":
        return ShmTransport(arena, worker_id=WorkerId(config.worker_id), epoch=config.epoch, on_wake=wake)
    return TcpTransport(arena, worker_id=WorkerId(config.worker_id), epoch=config.epoch, on_wake=wake)


def _scheduler_config(config: WorkerConfig, zero_copy: bool) -> SchedulerConfig:
    return SchedulerConfig(
        worker_id=WorkerId(config.worker_id),
        epoch=config.epoch,
        first_block_id=config.first_block_id,
        num_blocks=config.num_blocks,
        block_size=config.block_size,
        max_batched_tokens=config.max_num_batched_tokens,
        max_prefill_tokens=config.max_prefill_tokens,
        max_running=config.max_num_seqs,
        max_model_len=config.max_model_len,
        lease_s=config.drain_lease_s,
        zero_copy=zero_copy,
        enable_prefix_caching=config.enable_prefix_caching,
    )
