"""What is known of the workers' step costs, by machine and number of cores, and the facts that a simulator is given.

Learned from the workers' own reports. A worker that has just started, or has just been given other cores, says little
of what its steps will cost, and one on standby nothing: their figures are left out as soon as anything better is known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from relevo.core.events import UNKNOWN_COSTS, StepCosts
from relevo.core.ids import WorkerId
from relevo.core.role import parse_role
from relevo.orchestrator.ports import WorkerStatus
from relevo.planner.step_stretch import StepStretch
from relevo.policy.scaling.worker_facts import WorkerFacts

YOUNG_S = 20.0  # arbitrary


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRules:
    """What all workers of a model have in common. `budget_tokens`: of a step, of a worker that has not said its own."""

    budget_tokens: int
    block_size: int
    max_running: int
    itl_target_s: float


@dataclass(slots=True)
class WorkerCosts:
    rules: WorkerRules
    before: Mapping[int, StepCosts] = field(default_factory=dict)  # of an earlier start, by number of cores
    _costs: dict[tuple[str, int], StepCosts] = field(default_factory=dict)  # by machine and number of cores
    _since: dict[str, tuple[int, int, float]] = field(default_factory=dict)  # by worker: epoch, cores, and since when
    _stretch: StepStretch = field(default_factory=StepStretch)

    def learn(self, workers: Sequence[WorkerStatus], now_s: float) -> None:
        """What they report now."""
        for worker in workers:
            num_cores = len(worker.cores)
            epoch, cores, since_s = self._since.get(worker.worker_id, (-1, -1, now_s))
            if (epoch, cores) != (worker.epoch, num_cores):
                since_s = now_s
                self._since[worker.worker_id] = (worker.epoch, num_cores, now_s)
            if not worker.ready or worker.load.costs == UNKNOWN_COSTS:
                continue
            stretch = self._stretch.of(worker)
            says_little = now_s - since_s < YOUNG_S or parse_role(worker.role).is_standby
            if not (says_little and any(box == worker.box_id for box, _ in self._costs)):
                self._costs[worker.box_id, num_cores] = _times(worker.load.costs, stretch)

    def facts(self, workers: Sequence[WorkerStatus]) -> tuple[WorkerFacts, ...]:
        return tuple(self._facts(worker) for worker in workers)

    def _facts(self, worker: WorkerStatus) -> WorkerFacts:
        budget = worker.counters.step_budget_tokens or self.rules.budget_tokens
        return WorkerFacts(
            worker_id=WorkerId(worker.worker_id),
            box=worker.box_id,
            cores=worker.started_on,
            costs=dict(self.before)
            | {number: costs for (box, number), costs in self._costs.items() if box == worker.box_id},
            num_blocks=worker.load.num_total_blocks,
            block_size=worker.layout.block_size if worker.layout is not None else self.rules.block_size,
            max_batched_tokens=budget,
            max_prefill_tokens=worker.counters.prefill_budget_tokens or budget,
            max_running=self.rules.max_running,
            itl_target_s=self.rules.itl_target_s,
        )


def _times(costs: StepCosts, stretch: float) -> StepCosts:
    if stretch == 1.0:
        return costs
    return StepCosts(
        base_s=stretch * costs.base_s,
        per_token_s=stretch * costs.per_token_s,
        per_kv_token_s=stretch * costs.per_kv_token_s,
    )
