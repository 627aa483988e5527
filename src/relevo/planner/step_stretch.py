"""How many times as long as their costs say a worker's steps have taken of late.

Costs are one line through steps of all sizes. Where a mode's steps are all of a kind that lies above it, such as the
small chunks of long prompts beside streams, it is promised what it cannot keep. Counted from what workers report; a
worker that is faster than its costs say is not believed, for steps that take no time of their own are counted, too.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import log

from relevo.core.events import StepCosts, StepCounters
from relevo.orchestrator.ports import WorkerStatus

_FEWEST_STEPS = 50  # between two looks, to count. Arbitrary
_GRAIN = 1.15  # what is within it is noise, and its powers are told: costs that jitter make every question a new one
_MOST = 2.0  # Arbitrary: what is beyond it is no matter of costs


@dataclass(slots=True)
class _Look:
    epoch: int
    num_cores: int
    counters: StepCounters
    stretch: float = 1.0


@dataclass(slots=True)
class StepStretch:
    _looks: dict[str, _Look] = field(default_factory=dict)  # by worker: the last one that counted

    def of(self, worker: WorkerStatus) -> float:
        """As it reports now; 1 where nothing else is known."""
        last, now = self._looks.get(worker.worker_id), worker.counters
        if last is None or (last.epoch, last.num_cores) != (worker.epoch, len(worker.cores)):
            self._looks[worker.worker_id] = _Look(worker.epoch, len(worker.cores), now)
            return 1.0
        if now.num_steps - last.counters.num_steps >= _FEWEST_STEPS:
            stretch = _stretch(last.counters, now, worker.load.costs, worker.load.num_decode_kv_tokens)
            self._looks[worker.worker_id] = _Look(worker.epoch, len(worker.cores), now, stretch)
            return stretch
        return last.stretch


def _stretch(before: StepCounters, after: StepCounters, costs: StepCosts, num_kv_tokens: int) -> float:
    """`num_kv_tokens`: that steps read, as of now."""
    num_steps = after.num_steps - before.num_steps
    num_tokens = after.num_prefill_tokens + after.num_generation_tokens
    num_tokens -= before.num_prefill_tokens + before.num_generation_tokens
    expected_s = num_steps * costs.step_s(0, num_kv_tokens) + costs.per_token_s * num_tokens
    took_s = after.busy_s - before.busy_s
    if expected_s <= 0.0 or took_s <= expected_s * _GRAIN:
        return 1.0
    return min(_MOST, _GRAIN ** round(log(took_s / expected_s) / log(_GRAIN)))
