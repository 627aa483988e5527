"""What a planner knows of a worker that is there: its room, its budgets, what its steps cost on how many cores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from relevo.core.events import UNKNOWN_COSTS, StepCosts
from relevo.core.ids import WorkerId

# Twice the cores compute 2 ** 0.8 times as much; two with AVX2: 2 ** 0.72 (28 streams) to 2 ** 0.87 (prompts).
CORES_GAIN = 0.8


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerFacts:
    """Of one worker, as it is now."""

    worker_id: WorkerId
    box: str
    cores: tuple[int, ...]  # that it was started on; none: unknown
    costs: Mapping[int, StepCosts]  # learned, by the number of cores that they were learned on; 0: unknown number
    num_blocks: int
    block_size: int
    max_batched_tokens: int
    max_prefill_tokens: int
    max_running: int
    itl_target_s: float = 0.0

    def costs_on(self, num_cores: int) -> StepCosts:
        """Learned, or those of the nearest number: what is computed grows with cores, less than they do, and what is
        read, which is the least time of a step, gets slower with fewer but no shorter with more until that was
        measured. Wrong at worst once, until they have been learned."""
        known = self.costs.get(num_cores)
        if known is not None or not self.costs:
            return known or UNKNOWN_COSTS
        nearest = min(self.costs, key=lambda number: (abs(number - num_cores), number))
        costs, ratio = self.costs[nearest], nearest / num_cores if nearest and num_cores else 1.0
        reads = max(1.0, ratio)
        return StepCosts(
            base_s=costs.base_s * reads,
            per_token_s=costs.per_token_s * ratio**CORES_GAIN,
            per_kv_token_s=costs.per_kv_token_s * reads,
        )
