"""One model's planner in time: looks at the window and the workers, asks the simulator, acts, and keeps what it said.

Owns the order of these calls and the last decisions, for the log, /metrics and /v1/plan. What is good is decided in
`policy.scaling.role_planner`; the simulator is asked somewhere else than on the event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from relevo.core.errors import RelevoError
from relevo.core.ids import WorkerId
from relevo.core.ports import Clock
from relevo.core.role import Role, parse_role
from relevo.orchestrator.ports import WorkerStatus
from relevo.planner.not_simulated import NotSimulated
from relevo.planner.together import Telling, Together, encode
from relevo.planner.told_decisions import ToldDecisions
from relevo.planner.window import DemandWindow, Window, what_is_unknown
from relevo.planner.worker_number import WorkerNumber
from relevo.policy.scaling.demand import Demand, has_gone
from relevo.policy.scaling.mode_outlook import ModeOutlook
from relevo.policy.scaling.modes import Mode, mode_named, modes_of
from relevo.policy.scaling.planner_limits import PlannerLimits
from relevo.policy.scaling.role_planner import PlanDecision, PlanVerdict, RolePlanner, Seen

log = logging.getLogger("relevo.planner")

_ACTS = (PlanVerdict.START, PlanVerdict.CHANGE, PlanVerdict.UNDO)
_LOOK_S = 0.25  # while workers start. Arbitrary


Ask = Callable[[Sequence[Mode], Demand, Sequence[WorkerStatus]], Awaitable[Mapping[Mode, ModeOutlook]]]


@dataclass(frozen=True, slots=True)
class Question:
    """What each of these modes would make of that demand, with these workers."""

    modes: Sequence[Mode]
    demand: Demand
    workers: Sequence[WorkerStatus]
    seen: Seen
    window: Window


@dataclass(frozen=True, slots=True)
class History:
    """What was asked for before the server started."""

    source: str  # in words
    demand: Demand


@dataclass(slots=True, kw_only=True)
class RolePlanning:
    """`ask`: what each mode would make of a demand; raises NotSimulated. `is_dry`: what it would do is only said."""

    model: str
    window: DemandWindow
    planner: RolePlanner
    limits: PlannerLimits
    ask: Ask
    close: Callable[[], None]  # once nothing is asked any more
    clock: Clock
    unix_s: Callable[[], float]
    is_dry: bool
    targets: Mapping[str, float]  # as the operator set them, for the page
    together: Together | None = None  # with other gateways over the same workers; None: there are none
    elsewhere: Callable[[], str] = lambda: ""  # who else hands requests to these workers, and is not heard of
    num_decisions: Counter[str] = field(default_factory=Counter)  # by verdict
    number: WorkerNumber | None = None  # of workers; None: it is not planned
    history: History | None = None  # that it starts from
    only_begins: bool = False  # and does nothing after that
    _told: ToldDecisions = field(default_factory=ToldDecisions)
    mode_now: str = ""  # of the workers, as of the last tick; empty: there was none
    _last: PlanDecision | None = None

    async def run(self) -> None:
        while self.history is not None or not self.only_begins:
            await asyncio.sleep(self.limits.tick_s if self.history is None else _LOOK_S)
            try:
                if self.history is None:
                    await self.tick()
                    await self._plan_number()
                elif all(worker.ready for worker in self.window.status().workers):
                    history, self.history = self.history, None
                    await self._begin(history)
            except Exception:
                log.exception("a tick of the planner failed; the roles stay as they are")

    async def _begin(self, history: History) -> None:
        """Every worker is there: in the mode that would have been best for the history."""
        workers, window = self.window.status().workers, self.window.look()
        modes = modes_of(_machines(workers))
        mode = self._mode_of(workers, modes)
        seen = Seen(now_s=self.clock.now_ns() / 1e9, mode=mode, demand=history.demand)
        try:
            outlooks = await self.ask(modes if mode in modes else (*modes, mode), history.demand, workers)
        except NotSimulated as failed:
            log.warning("%s: it starts as %s: %s", self.model, mode, failed.message)
            return
        if self._mode_of(self.window.status().workers, modes) == mode:
            self._carry_out(self.planner.begin(seen, outlooks, history.source), seen, window)

    async def tick(self) -> PlanDecision:
        """One decision, carried out."""
        if self.together is not None:
            await self.together.hear()
            if not self.together.leads:
                return self._stand_back(self.together.leader)
        found = self.look()
        if isinstance(found, Question):
            try:
                outlooks = await self.ask(found.modes, found.demand, found.workers)
            except NotSimulated as failed:
                return self._carry_out(self.planner.unanswered(found.seen, failed.message), found.seen, found.window)
            found = self.decide(found, outlooks)
        return found

    async def _plan_number(self) -> None:
        """After the roles, which change sooner."""
        if self.number is None:
            return
        if self.together is not None and not self.together.leads:
            self.number.stand_back()
            return
        status, now_s = self.window.status(), self.clock.now_ns() / 1e9
        num_waiting = sum(line.num_waiting for line in status.lines)
        await self.number.tick(self._look(), status.workers, num_waiting, now_s, self._unheard())

    def look(self) -> Question | PlanDecision:
        """What is to be found out before `decide`, or what was decided and carried out without."""
        workers, window = self.window.status().workers, self._look()
        there = tuple(worker for worker in workers if worker.ready)
        modes = modes_of(_machines(there))
        seen = self._seen(workers, there, window, modes)
        found = self.planner.question(seen)
        if isinstance(found, Demand):
            return Question(modes if seen.mode in modes else (*modes, seen.mode), found, there, seen, window)
        return self._carry_out(found, seen, window)

    def decide(self, question: Question, outlooks: Mapping[Mode, ModeOutlook]) -> PlanDecision:
        """And carry it out, unless a worker was given another role meanwhile, came or left, or a rush is over."""
        there = [worker for worker in self.window.status().workers if worker.ready]
        if self._mode_of(there, question.modes) != question.seen.mode:
            why = "roles or workers changed while the simulator was asked"
            return self._carry_out(self.planner.unanswered(question.seen, why), question.seen, question.window)
        if self._is_over(question):
            why = "the rush that the simulator was asked about is over"
            return self._carry_out(self.planner.unanswered(question.seen, why), question.seen, question.window)
        return self._carry_out(self.planner.decide(question.seen, outlooks), question.seen, question.window)

    def _is_over(self, question: Question) -> bool:
        asked, then, now = question.seen.demand, question.window, self._look()
        if asked is None or then.num_kinds != now.num_kinds or then.span_s < 2 * self.limits.tick_s:
            return False  # what a few seconds hold is no rate
        return has_gone(asked, then.num_requests / then.span_s, now.demand)

    def _look(self) -> Window:
        """At what came in through all gateways."""
        window = self.window.look()
        return self.together.whole(window) if self.together is not None else window

    def tell(self) -> bytes:
        """What another gateway is told that asks."""
        return encode(Telling.of(self.window.look(), self.plan() if self.together and self.together.leads else None))

    def _stand_back(self, leader: str) -> PlanDecision:
        """Another gateway plans: two would fight over the same roles."""
        there = tuple(worker for worker in self.window.status().workers if worker.ready)
        mode = self._mode_of(there, modes_of(_machines(there)))
        window = self.window.look()
        seen = Seen(now_s=self.clock.now_ns() / 1e9, mode=mode, num_requests=window.num_requests)
        found = self.planner.stand_back(seen, f"{leader} plans for all gateways")
        self._tell(found, seen, window)
        return found

    def _carry_out(self, found: PlanDecision, seen: Seen, window: Window) -> PlanDecision:
        if found.verdict in _ACTS and not self.is_dry:
            before = dict(seen.mode.roles)
            changed: dict[str, Role] = {name: role for name, role in found.mode.roles if before[name] != role}
            try:
                if changed:
                    self.window.set_roles(changed, found.reason)
            except RelevoError as refused:  # a worker left between the look and the act
                found = self.planner.not_done(seen, refused.message)
        self._tell(found, seen, window)
        return found

    def _seen(
        self, workers: Sequence[WorkerStatus], there: Sequence[WorkerStatus], window: Window, modes: Sequence[Mode]
    ) -> Seen:
        now_s = self.clock.now_ns() / 1e9
        return Seen(
            now_s=now_s,
            mode=self._mode_of(there, modes),
            unknown=self._unheard() or what_is_unknown(len(there) > 0, window),
            away=tuple(worker.worker_id for worker in workers if not worker.ready),
            num_requests=window.num_requests,
            demand=window.demand,
            attained=window.attained,
            num_judged=window.num_judged,
            since_s=now_s - window.span_s,
            num_kinds=window.num_kinds,
        )

    def _unheard(self) -> str:
        """Requests that come in through others, and are not known: these may plan, too. Empty: there are none."""
        return self.elsewhere() or (self.together.unknown if self.together is not None else "")

    def _mode_of(self, workers: Sequence[WorkerStatus], modes: Sequence[Mode]) -> Mode:
        return mode_named(modes, {WorkerId(worker.worker_id): parse_role(worker.role) for worker in workers})

    def _tell(self, decision: PlanDecision, seen: Seen, window: Window) -> None:
        self.num_decisions[decision.verdict.value] += 1
        self.mode_now = seen.mode.name if self.is_dry else decision.mode.name
        is_news = self._last is None or (decision.verdict, decision.mode) != (self._last.verdict, self._last.mode)
        self._last = decision
        if not self._told.add(self._record(decision, window), is_news=is_news or decision.verdict in _ACTS):
            return
        dry = "would " if self.is_dry and decision.verdict in _ACTS else ""
        log.info("%s: %s%s, mode %s: %s", self.model, dry, decision.verdict, decision.mode, decision.reason)

    def _record(self, decision: PlanDecision, window: Window) -> dict[str, Any]:
        return {
            "at_unix_s": round(self.unix_s(), 3),
            "verdict": decision.verdict.value,
            "mode": decision.mode.name,
            "roles": {name: str(role) for name, role in decision.mode.roles},
            "reason": decision.reason,
            "expected": asdict(decision.expected) if decision.expected is not None else None,
            "modes": {name: asdict(outlook) for name, outlook in decision.outlooks.items()},
            "forecast": decision.forecast,
            "expected_requests_per_s": decision.rate_per_s,
            "num_requests": window.num_requests,
            "attained": window.attained,
        }

    def plan(self) -> dict[str, Any]:
        """For /v1/plan, of the gateway that plans: the last decision, and those before that brought something new."""
        together = self.together
        if together is not None and not together.leads and together.leaders_plan is not None:
            return together.leaders_plan
        return {
            "model": self.model,
            "planned_by": together.gateway_id if together is not None else "",
            "mode": self.mode_now,
            "is_dry_run": self.is_dry,
            "targets": dict(self.targets),
            "tick_s": self.limits.tick_s,
            "num_changes": self.planner.num_changes,
            "num_decisions": dict(self.num_decisions),
            "workers": self.number.plan() if self.number is not None else None,
            "decisions": self._told.newest_first(),
        }


def _machines(workers: Sequence[WorkerStatus]) -> dict[str, list[WorkerId]]:
    machines: dict[str, list[WorkerId]] = {}
    for worker in workers:
        machines.setdefault(worker.box_id, []).append(WorkerId(worker.worker_id))
    return machines
