"""One model's number of workers in time: what is wanted, why, and whether it was carried out.

Owns the order of these calls, the answer of the simulator that still holds, and the last decisions, for the log,
/metrics and /v1/plan. What is enough is decided in `policy.scaling.worker_count`; who brings workers is a cluster that
reads the number, or a `Scaler`.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from relevo.orchestrator.ports import WorkerStatus
from relevo.planner.not_simulated import NotSimulated
from relevo.planner.told_decisions import ToldDecisions
from relevo.planner.window import Window, what_is_unknown
from relevo.policy.scaling.answer_pool import KEPT_S
from relevo.policy.scaling.demand import Demand, is_alike
from relevo.policy.scaling.enough_workers import CountLimits
from relevo.policy.scaling.mode_outlook import ModeOutlook
from relevo.policy.scaling.wanted_workers import WantedWorkers
from relevo.policy.scaling.worker_count import CountDecision, CountPlanner, CountSeen, CountVerdict

log = logging.getLogger("relevo.planner")

_CHANGES = (CountVerdict.MORE, CountVerdict.FEWER, CountVerdict.GIVE_UP)


AskNumbers = Callable[[CountSeen, Demand, Sequence[WorkerStatus]], Awaitable[Mapping[int, ModeOutlook]]]


class Scaler(Protocol):
    """Brings workers, and takes them away."""

    def tick(self, wanted: int, reason: str, workers: Sequence[WorkerStatus], now_s: float) -> None:
        """Called with every tick; does not wait. `reason`: why so many are wanted."""
        ...

    def adopt(self, number: int) -> None:
        """So many there are, by a person's hand."""
        ...

    def close(self) -> None: ...

    @property
    def num_commands(self) -> Mapping[str, int]: ...  # by outcome

    def plan(self) -> dict[str, Any]: ...


@dataclass(frozen=True, slots=True)
class _Answer:
    at_s: float
    total: int
    demand: Demand
    outlooks: Mapping[int, ModeOutlook]


@dataclass(slots=True, kw_only=True)
class WorkerNumber:
    """`ask`: what numbers of workers would make of a demand; raises NotSimulated. `scaler`: None where the number is
    only said, as it is in a dry run."""

    model: str
    planner: CountPlanner
    limits: CountLimits
    wanted: WantedWorkers
    ask: AskNumbers
    unix_s: Callable[[], float]
    scaler: Scaler | None = None
    num_decisions: Counter[str] = field(default_factory=Counter)  # by verdict
    _last: CountDecision | None = None
    _answer: _Answer | None = None
    _told: ToldDecisions = field(default_factory=ToldDecisions)

    @property
    def number(self) -> int | None:
        """That is wanted; None: nothing is known yet."""
        return self.wanted.number

    @property
    def num_commands(self) -> Mapping[str, int]:
        return self.scaler.num_commands if self.scaler is not None else {}

    async def tick(
        self, window: Window, workers: Sequence[WorkerStatus], num_waiting: int, now_s: float, unheard: str = ""
    ) -> CountDecision | None:
        """One decision, carried out; None while the first number is found. `num_waiting`: requests in line. `unheard`:
        what is not known of the demand."""
        staying = [worker for worker in workers if not worker.is_leaving]
        there = frozenset(worker.worker_id for worker in staying if worker.ready)
        by_hand = self.wanted.look(now_s, there, frozenset(worker.worker_id for worker in workers))
        if self.wanted.number is None:
            return None
        if by_hand:
            return self._carry_out(self._same(CountVerdict.ADOPT, by_hand), workers, now_s)
        seen = self._seen(window, num_waiting, now_s, unheard)
        found = self.planner.question(seen)
        if held_s := self.wanted.held_for_s(now_s):
            reason = f"{held_s:.0f} s until the next change, after the one by hand"
            return self._carry_out(self._same(CountVerdict.HOLD, reason), workers, now_s)
        if isinstance(found, Demand):
            found = await self._decide(seen, found, [worker for worker in staying if worker.ready], window.span_s)
        return self._carry_out(found, workers, now_s)

    def stand_back(self) -> None:
        """Another gateway decides."""
        self.wanted.forget()
        self._last = self._answer = None

    def _seen(self, window: Window, num_waiting: int, now_s: float, unheard: str) -> CountSeen:
        wanted = self.wanted
        has_workers = wanted.num_there > 0
        has_any = has_workers or wanted.num_coming > 0
        return CountSeen(
            now_s=now_s,
            num_there=wanted.num_there,
            num_coming=wanted.num_coming,
            start_s=wanted.expected_start_s,
            unknown=unheard or (what_is_unknown(has_workers, window) if has_any else ""),
            num_requests=window.num_requests,
            num_waiting=0 if has_workers else num_waiting,
            demand=window.demand if has_workers else None,
        )

    async def _decide(
        self, seen: CountSeen, demand: Demand, there: Sequence[WorkerStatus], window_s: float
    ) -> CountDecision:
        total, known = seen.num_there + seen.num_coming, self._answer
        is_known = known is not None and known.total == total and seen.now_s - known.at_s < KEPT_S
        if known is None or not is_known or not is_alike(demand, known.demand, window_s):
            try:
                known = _Answer(seen.now_s, total, demand, await self.ask(seen, demand, there))
            except NotSimulated as failed:
                return CountDecision(verdict=CountVerdict.UNKNOWN, num_workers=total, reason=failed.message)
            self._answer = known
        return self.planner.decide(seen, known.outlooks)

    def _same(self, verdict: CountVerdict, reason: str) -> CountDecision:
        return CountDecision(verdict=verdict, num_workers=self.wanted.number or 0, reason=reason)

    def _carry_out(self, found: CountDecision, workers: Sequence[WorkerStatus], now_s: float) -> CountDecision:
        if found.verdict in _CHANGES:
            self.wanted.decided(found, now_s)
        self._tell(found)
        if self.scaler is None or self.wanted.number is None:
            return found
        if found.verdict is CountVerdict.ADOPT:
            self.scaler.adopt(self.wanted.number)
        else:
            self.scaler.tick(self.wanted.number, self.wanted.reason, workers, now_s)
        return found

    def _tell(self, found: CountDecision) -> None:
        self.num_decisions[found.verdict.value] += 1
        last, self._last = self._last, found
        row = {
            "at_unix_s": round(self.unix_s(), 3),
            "verdict": found.verdict.value,
            "wanted": self.wanted.number,
            "there": self.wanted.num_there,
            "reason": found.reason,
        }
        is_news = last is None or (found.verdict, found.num_workers) != (last.verdict, last.num_workers)
        if self._told.add(row, is_news=is_news or found.verdict in _CHANGES):
            log.info("%s: %s, %s workers wanted: %s", self.model, found.verdict, self.wanted.number, found.reason)

    def plan(self) -> dict[str, Any]:
        """For /v1/plan: the number, and the decisions that brought something new, newest first."""
        limits = self.limits
        return {
            "wanted": self.wanted.number,
            "reason": self.wanted.reason,
            "there": self.wanted.num_there,
            "coming": self.wanted.num_coming,
            "min_workers": limits.least,
            "max_workers": limits.most,
            "spare": limits.spare,
            "start_s": self.wanted.expected_start_s,
            "num_decisions": dict(self.num_decisions),
            "commands": self.scaler.plan() if self.scaler is not None else None,
            "decisions": self._told.newest_first(),
        }
