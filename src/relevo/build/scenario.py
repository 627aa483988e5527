"""One configuration of `relevo simulate`: what it is called, its world, and what is recorded of its machines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from math import inf
from typing import Any

from relevo.sim.config import WorldConfig
from relevo.sim.fleet import Fleet


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    label: str
    config: WorldConfig
    prices_per_h: Mapping[str, float] = field(default_factory=dict)  # of a device, by role; none: nothing has a price
    machines: dict[str, Any]
    is_as_served: bool = False


def machines_json(fleet: Fleet, config: WorldConfig) -> dict[str, Any]:
    layout, workers = config.serving.layout, config.regions[0].workers
    num_blocks = {worker.role: worker.num_blocks for worker in workers}
    pools = [
        {"role": pool.role, "num_workers": pool.num_workers, **asdict(pool.machine), "kv_blocks": num_blocks[pool.role]}
        for pool in fleet.pools
    ]
    return {
        "model": layout.model_hash,
        "block_size": layout.block_size,
        "kv_bytes_per_token": layout.bytes_per_token,
        "front_end_s": config.front_end_s,
        "link_bytes_per_s": _finite(config.network.port.bandwidth_bytes_per_s),
        "pools": pools,
    }


def _finite(value: float) -> float | None:
    """JSON has no infinity."""
    return None if value == inf else value
