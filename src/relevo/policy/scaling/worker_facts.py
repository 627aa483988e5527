"""What a planner knows of a worker that is there: its room, its budgets, what its steps cost on how many cores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from relevo.core.events import UNKNOWN_COSTS, StepCosts
from relevo.core.ids import WorkerId

# What twice the cores compute, as a power of two; measured on two with AVX2: 0.4 (steps of 20 rows beside a busy
# gateway), 0.7 (28 rows) to 0.87 (long prompts). Of more cores that were not measured the least is promised, of fewer
# the most is taken away: a mode is not changed for what was only assumed of it.
LEAST_GAIN, MOST_GAIN = 0.6, 0.9


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
        """Learned, or those of the nearest number, as slow as they may be: what is computed grows little with more
        cores, and what is read, which is the least time of a step, no shorter until that was measured."""
        known = self.costs.get(num_cores)
        if known is not None or not self.costs:
            return known or UNKNOWN_COSTS
        nearest = min(self.costs, key=lambda number: (abs(number - num_cores), number))
        costs, ratio = self.costs[nearest], nearest / num_cores if nearest and num_cores else 1.0
        reads, computes = max(1.0, ratio), ratio ** (MOST_GAIN if ratio > 1.0 else LEAST_GAIN)
        return StepCosts(
            base_s=costs.base_s * reads,
            per_token_s=costs.per_token_s * computes,
            per_kv_token_s=costs.per_kv_token_s * reads,
        )
