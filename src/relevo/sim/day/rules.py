"""What is done about roles at each tick of a day: nothing, what a threshold says, or what a planner decides.

The threshold rule is what one gets without forecasts and simulation: it reacts to what it sees. It stands here to be
compared with, and serves nowhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from relevo.core.ids import WorkerId
from relevo.core.role import Role, parse_role
from relevo.planner.loop import Question, RolePlanning
from relevo.planner.worker_costs import WorkerCosts, WorkerRules
from relevo.policy.scaling.mode_outlook import ModeOutlook
from relevo.policy.scaling.modes import Mode, modes_of
from relevo.policy.scaling.planner_limits import PlannerLimits
from relevo.policy.scaling.role_planner import PlanDecision, RolePlanner
from relevo.sim.config import WorkerSpec
from relevo.sim.day.outlooks import Outlooks
from relevo.sim.kernel import seconds
from relevo.sim.role_world import RoleWorld
from relevo.telemetry.latency import Slo

_LIMITS = PlannerLimits()


@dataclass(frozen=True, slots=True)
class Change:
    """What is reported of one."""

    at_s: float
    mode: str
    reason: str


def modes_of_specs(workers: Sequence[WorkerSpec]) -> tuple[Mode, ...]:
    machines: dict[str, list[WorkerId]] = {}
    for spec in workers:
        machines.setdefault(spec.box, []).append(WorkerId(spec.worker_id))
    return modes_of(machines)


@dataclass(slots=True)
class Threshold:
    """The next mode of a row of modes where too few requests of the last minute met the targets; then it waits."""

    world: RoleWorld
    modes: Sequence[Mode]
    mode: Mode
    least: float = 0.9  # that have to meet the targets
    cool_down_s: float = 60.0
    changes: list[Change] = field(default_factory=list)
    _held_until_s: float = 0.0

    def tick(self) -> None:
        seen, now_s = self.world.window.look(), self.world.now_s
        if seen.attained is None or seen.num_judged < _LIMITS.min_requests or now_s < self._held_until_s:
            return
        if seen.attained >= self.least or not all(each.ready for each in self.world.window.status().workers):
            return
        self.mode = next(after for before, after in pairwise([*self.modes, self.modes[0]]) if before == self.mode)
        self._held_until_s = now_s + self.cool_down_s
        reason = f"{seen.attained:.0%} met the targets"
        self.changes.append(Change(now_s, self.mode.name, reason))
        give_roles(self.world, self.mode, reason)


@dataclass(slots=True)
class Planned:
    """The planner of a live gateway; its answers take as long as they do there."""

    world: RoleWorld
    planning: RolePlanning
    outlooks: Outlooks
    answer_s: float
    decisions: list[tuple[float, PlanDecision]] = field(default_factory=list)
    _is_asking: bool = False

    def tick(self) -> None:
        if self._is_asking:
            return
        found = self.planning.look()
        if isinstance(found, Question):
            known = self.outlooks.known(found, self.world.now_s)
            if known is not None:
                self.decisions.append((self.world.now_s, self.planning.decide(found, known)))
                return
            self._is_asking = True
            answers = self.outlooks.of(found, self.world.now_s)
            self.world.kernel.call_after(seconds(self.answer_s), self._answered, found, answers)
        else:
            self.decisions.append((self.world.now_s, found))

    def _answered(self, question: Question, answers: Mapping[Mode, ModeOutlook]) -> None:
        self._is_asking = False
        self.world.quiet.catch_up()
        self.decisions.append((self.world.now_s, self.planning.decide(question, answers)))

    @property
    def changes(self) -> list[Change]:
        return [
            Change(at_s, found.mode.name, found.reason)
            for at_s, found in self.decisions
            if found.verdict.value in ("change", "undo")
        ]


def give_roles(world: RoleWorld, mode: Mode, reason: str) -> None:
    now: dict[str, Role] = {each.worker_id: parse_role(each.role) for each in world.window.status().workers}
    world.window.set_roles({name: role for name, role in mode.roles if now[name] != role}, reason)


def planned_in(
    world: RoleWorld,
    slo: Slo,
    *,
    limits: PlannerLimits = _LIMITS,
    num_requests: int = 120,
    answer_s: float = 1.0,
    is_dry: bool = False,
    unix_s: Callable[[], float] | None = None,
) -> Planned:
    """The planner that `--planner on` starts, on virtual time, with small worlds."""
    assert slo.ttft_s is not None and slo.itl_s is not None
    region, serving = world.config.regions[0], world.config.serving
    first = region.workers[0]
    rules = WorkerRules(
        budget_tokens=first.max_batched_tokens,
        block_size=serving.layout.block_size,
        max_running=first.max_running,
        itl_target_s=first.itl_target_s,
    )
    outlooks = Outlooks(
        costs=WorkerCosts(rules),
        max_model_len=serving.max_model_len,
        slo=slo,
        surge=limits.surge,
        num_requests=num_requests,
        window_s=world.window.span_s,
    )
    planning = RolePlanning(
        model="model",
        window=world.window,
        planner=RolePlanner(limits, slo.ttft_s, slo.itl_s, acts=not is_dry),
        limits=limits,
        ask=_unasked,
        close=lambda: None,
        clock=world.kernel,
        unix_s=unix_s or (lambda: world.now_s),
        is_dry=is_dry,
        targets={"ttft_p90_s": slo.ttft_s, "itl_p90_s": slo.itl_s},
    )
    planned = Planned(world, planning, outlooks, answer_s)
    world.on_tick = planned.tick
    return planned


async def _unasked(modes: object, demand: object, workers: object) -> Mapping[Mode, ModeOutlook]:
    raise AssertionError("on virtual time `look` and `decide` are called, not `tick`")
