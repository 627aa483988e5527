"""What a start says of the workers of a model."""

from __future__ import annotations

from dataclasses import replace

from relevo.build.configs import WorkerConfig
from relevo.build.expert_loads import Loads
from relevo.build.placed_experts import placement_note
from relevo.build.tensor_group import group_notes
from relevo.core.kv import KVLayout
from relevo.policy.worker.table_rules import num_pool_tokens, table_rules
from relevo.settings import Settings


def worker_notes(
    settings: Settings, loads: Loads | None, workers: tuple[WorkerConfig, ...], layout: KVLayout
) -> tuple[str, ...]:
    if not workers:
        return ("no workers on this box: they join",)
    pools = {(worker.block_size, worker.num_blocks): worker for worker in workers}
    kv_notes = [_kv_note(replace(layout, block_size=size), worker, len(workers)) for (size, _), worker in pools.items()]
    placed = placement_note(settings, loads, workers[0])
    return _compute_note(workers[0]), *kv_notes, *group_notes(workers), *((placed,) if placed else ())


def _compute_note(worker: WorkerConfig) -> str:
    weights = "as stored" if worker.dtype == "auto" else worker.dtype
    if worker.quantization is not None:
        weights = f"quantised to {worker.quantization} per output"
    num_stages, size = worker.pipeline_parallel_size, worker.group_size
    each = f"{size} processes that share its layers" if size > 1 else "a process of its own"
    ranks = f", layers in {num_stages} stages, each in {each}" if num_stages > 1 else ""
    if num_stages == 1 and size > 1:
        ranks = f", every layer shared by {size} processes"
    return f"{worker.backend} on {worker.device}, weights {weights}, KV cache {worker.kv_cache_dtype}{ranks}"


def _kv_note(layout: KVLayout, worker: WorkerConfig, num_workers: int) -> str:
    num_blocks, size = worker.num_blocks, layout.block_size
    gib = num_blocks * layout.bytes_per_block / 2**30
    tokens = num_pool_tokens(table_rules(layout), num_blocks, size, worker.max_num_batched_tokens)
    each = " each" if num_workers > 1 else ""
    return f"KV cache {num_blocks} blocks of {size} tokens{each} ({gib:.2f} GiB, {tokens} tokens)"
