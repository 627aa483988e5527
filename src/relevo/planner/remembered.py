"""Asks the simulator only for what is not known well enough (`policy.scaling.answer_pool`). A caller must not change
what it is given."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence

from relevo.core.ids import WorkerId
from relevo.core.ports import Clock
from relevo.core.role import parse_role
from relevo.orchestrator.ports import WorkerStatus
from relevo.policy.scaling.answer_pool import AnswerPool
from relevo.policy.scaling.demand import Demand
from relevo.policy.scaling.mode_outlook import ModeOutlook
from relevo.policy.scaling.modes import Mode, mode_named

AskOnce = Callable[[Sequence[Mode], Demand, Sequence[WorkerStatus], int], Awaitable[Mapping[Mode, ModeOutlook]]]


class RememberedAnswers:
    def __init__(self, ask: AskOnce, clock: Clock, pool: AnswerPool) -> None:
        """`ask`: the simulator, with the seed of the requests that it is to draw."""
        self._ask = ask
        self._clock = clock
        self._pool = pool

    async def ask(
        self, modes: Sequence[Mode], demand: Demand, workers: Sequence[WorkerStatus]
    ) -> Mapping[Mode, ModeOutlook]:
        asked = asked_of(modes, workers)
        known = self._pool.known(asked, present_of(modes, workers), demand, self._now_s)
        if known is not None:
            return known
        seed = self._pool.seed(asked, demand, self._now_s)
        outlooks = await self._ask(modes, demand, workers, seed)
        return self._pool.add(asked, demand, self._now_s, seed, outlooks)

    @property
    def _now_s(self) -> float:
        return self._clock.now_ns() / 1e9


def asked_of(modes: Sequence[Mode], workers: Sequence[WorkerStatus]) -> object:
    """On what, beside the demand, an answer depends."""
    return tuple(modes), tuple((worker.worker_id, worker.epoch, worker.role) for worker in workers)


def present_of(modes: Sequence[Mode], workers: Sequence[WorkerStatus]) -> Mode:
    return mode_named(modes, {WorkerId(worker.worker_id): parse_role(worker.role) for worker in workers})
