"""Small worlds for tests."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

from relevo.core.events import StepCosts
from relevo.core.kv import KVGroup, KVLayout
from relevo.policy.perf.step_time import FittedStepTimes
from relevo.sim.config import RegionSpec, ServingSpec, WorkerSpec, WorldConfig
from relevo.sim.results import WorldResult
from relevo.sim.world import World
from relevo.workload.requests import Workload, WorkloadRequest

TIMES = FittedStepTimes(StepCosts(base_s=0.01, per_token_s=1e-4, per_kv_token_s=1e-7))
LAYOUT = KVLayout("model", "float16", 16, (KVGroup.full(range(8), 2, 64),))


def worker(worker_id: str, role: str, **traits: Any) -> WorkerSpec:
    spec = WorkerSpec(
        worker_id=worker_id,
        role=role,
        times=TIMES,
        num_blocks=400,
        box=worker_id,
        max_batched_tokens=512,
        max_prefill_tokens=128,
        max_running=32,
    )
    return replace(spec, **traits)


def split(num_prefill: int, num_decode: int, **traits: Any) -> tuple[WorkerSpec, ...]:
    prefill = tuple(worker(f"prefill-{i}", "prefill", **traits) for i in range(num_prefill))
    return prefill + tuple(worker(f"decode-{i}", "decode", **traits) for i in range(num_decode))


def config(workers: tuple[WorkerSpec, ...], num_gateways: int = 1, **parts: Any) -> WorldConfig:
    serving = parts.pop("serving", None) or ServingSpec(layout=LAYOUT, max_model_len=4096)
    return WorldConfig(regions=(RegionSpec(workers=workers, num_gateways=num_gateways),), serving=serving, **parts)


def chat(num_requests: int, rate_per_s: float, seed: int = 0) -> Workload:
    """Prompts of up to 600 tokens, of which some begin alike, and short answers."""
    rng, rows, at_s = Random(seed), [], 0.0
    for row in range(num_requests):
        at_s += rng.expovariate(rate_per_s)
        num_prompt_tokens = rng.randint(1, 600)
        ids = [rng.randrange(3) for _ in range(rng.randrange(1 + num_prompt_tokens // 64))]
        rows.append(
            WorkloadRequest(
                row=row,
                num_prompt_tokens=num_prompt_tokens,
                num_output_tokens=rng.randint(1, 40),
                arrived_at_s=at_s,
                hash_ids=ids,
                hash_block_size=64,
            )
        )
    return Workload(requests=rows)


def assert_nothing_is_left(world: World) -> None:
    """Charges are back to zero, blocks free or reusable, no request is anywhere."""
    for gateway in world.gateways.values():
        if not gateway.is_dead:
            assert gateway.dispatcher.num_in_flight == 0
            assert gateway.placement.is_idle and gateway.admission.is_idle
    for each in world.workers.values():
        pool = each.scheduler.pool
        assert pool.num_held == pool.num_quarantined == 0
        assert pool.num_free + pool.num_reusable == pool.num_blocks
        assert not each.scheduler.has_work()
    assert not world.clients


def outline(result: WorldResult) -> list[tuple[Any, ...]]:
    return [(r.row, r.outcome, r.num_cached_tokens, [list(run) for run in r.token_at_ns]) for r in result.requests]
