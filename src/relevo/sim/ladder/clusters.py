"""Small worlds for the rungs that simulate: workers of given step times, without limits that measured servers had not.

Requests wait as long as it takes: nothing is turned away, and no gateway holds back what a worker could take.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from relevo.core.kv import KVGroup, KVLayout
from relevo.policy.perf.step_time import StepTimeModel
from relevo.sim.config import NetworkSpec, RegionSpec, ServingSpec, WorkerSpec, WorldConfig
from relevo.sim.network import LinkTraits
from relevo.sim.results import RequestOutcome, RequestResult, WorldResult
from relevo.sim.world import World
from relevo.workload.requests import Workload, WorkloadRequest

_BLOCK_SIZE = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Workers that are alike."""

    role: str  # prefill, decode or unified
    num_workers: int
    times: StepTimeModel
    num_pool_tokens: int  # of each
    max_step_tokens: int = 8192
    max_rows: int = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    groups: Sequence[Group]
    kv_bytes_per_token: int = 131_072
    link_bytes_per_s: float = 50e9
    link_latency_s: float = 5e-6
    has_prefix_cache: bool = False
    block_size: int = _BLOCK_SIZE
    max_model_len: int = 131_072
    seed: int = 0


def simulate(cluster: Cluster, requests: Sequence[WorkloadRequest]) -> WorldResult:
    """All of them to their end."""
    workers = tuple(
        WorkerSpec(
            worker_id=f"{group.role}-{index}",
            role=group.role,
            times=group.times,
            num_blocks=group.num_pool_tokens // cluster.block_size,
            box=f"{group.role}-{index}",
            max_batched_tokens=group.max_step_tokens,
            max_prefill_tokens=group.max_step_tokens,
            max_running=group.max_rows,
        )
        for group in cluster.groups
        for index in range(group.num_workers)
    )
    layout = KVLayout("ladder", "float8_e4m3", cluster.block_size, (KVGroup.latent([0], cluster.kv_bytes_per_token),))
    port = LinkTraits(latency_s=cluster.link_latency_s, bandwidth_bytes_per_s=cluster.link_bytes_per_s)
    config = WorldConfig(
        regions=(RegionSpec(workers=workers),),
        serving=ServingSpec(
            layout=layout, enable_prefix_caching=cluster.has_prefix_cache, max_model_len=cluster.max_model_len
        ),
        network=NetworkSpec(port=port),
        seed=cluster.seed,
    )
    return World(config, Workload(requests=requests)).run()


def finished(result: WorldResult) -> list[RequestResult]:
    """Requests in the order of their rows. A request that did not finish would be missing from every mean: refused."""
    lost = [each for each in result.requests if each.outcome is not RequestOutcome.FINISHED]
    if lost:
        raise ValueError(f"{len(lost)} requests did not finish; the first: {lost[0].outcome}, {lost[0].reason}")
    return sorted(result.requests, key=lambda each: each.row)
