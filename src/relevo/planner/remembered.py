"""Answers of the simulator that still hold: steady traffic is not simulated anew every few seconds.

Owns the last answer. The same modes of the same workers under a demand that differs by no more than noise get it again,
for a minute; step costs change more slowly than that. A caller must not change it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from relevo.core.ports import Clock
from relevo.orchestrator.ports import WorkerStatus
from relevo.planner.loop import Ask
from relevo.policy.scaling.demand import Demand, is_alike
from relevo.policy.scaling.mode_outlook import ModeOutlook
from relevo.policy.scaling.modes import Mode

KEPT_S = 60.0  # arbitrary: as long as the window that a demand is of


@dataclass(frozen=True, slots=True)
class _Answer:
    at_ns: int
    asked: object
    demand: Demand
    outlooks: Mapping[Mode, ModeOutlook]


class RememberedAnswers:
    def __init__(self, ask: Ask, clock: Clock, window_s: float) -> None:
        """`window_s`: that demands are counted in."""
        self._ask = ask
        self._clock = clock
        self._window_s = window_s
        self._last: _Answer | None = None

    async def ask(
        self, modes: Sequence[Mode], demand: Demand, workers: Sequence[WorkerStatus]
    ) -> Mapping[Mode, ModeOutlook]:
        asked = (tuple(modes), tuple((worker.worker_id, worker.epoch, worker.role) for worker in workers))
        last, now_ns = self._last, self._clock.now_ns()
        is_fresh = last is not None and last.asked == asked and now_ns - last.at_ns < KEPT_S * 1e9
        if is_fresh and last is not None and is_alike(demand, last.demand, self._window_s):
            return last.outlooks
        outlooks = await self._ask(modes, demand, workers)
        self._last = _Answer(now_ns, asked, demand, outlooks)
        return outlooks
