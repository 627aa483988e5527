"""What is done about the number of workers at each tick of a day: nothing, what a utilisation says, or what a planner
decides. The reactive rule is what one gets from a usual autoscaler; it stands here to be compared with."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil

from relevo.core.ids import WorkerId
from relevo.core.role import Role, parse_role
from relevo.planner.worker_costs import WorkerCosts
from relevo.policy.scaling.alike_workers import alike, best_mode
from relevo.policy.scaling.demand import Demand
from relevo.policy.scaling.enough_workers import CountLimits
from relevo.policy.scaling.mode_outlook import ModeOutlook
from relevo.policy.scaling.modes import Mode, modes_of
from relevo.policy.scaling.worker_count import CountDecision, CountPlanner, CountSeen, CountVerdict
from relevo.sim.day.outlooks import Outlooks
from relevo.sim.elastic_world import ElasticWorld
from relevo.sim.kernel import seconds


@dataclass(frozen=True, slots=True)
class CountChange:
    """What is reported of one."""

    at_s: float
    num_workers: int
    reason: str


@dataclass(slots=True)
class Reactive:
    """As a usual autoscaler: so many workers that they would be busy for `busy` of the time, more if too few requests
    meet the targets; fewer only if that has been enough for a while."""

    world: ElasticWorld
    limits: CountLimits
    busy: float = 0.7
    least_attained: float = 0.9
    down_after_s: float = 60.0
    changes: list[CountChange] = field(default_factory=list)
    _busy_ns: int = 0
    _at_ns: int = 0
    _wanted: deque[tuple[float, int]] = field(default_factory=deque)
    _held_until_s: float = 0.0

    def tick(self) -> None:
        world, now_s = self.world, self.world.now_s
        number, busy = len(world.ordered), self._utilisation()
        seen = world.window.look()
        wanted = max(1, ceil(number * busy / self.busy))
        is_judged = seen.attained is not None and seen.num_judged >= self.limits.min_requests
        if is_judged and (seen.attained or 0.0) < self.least_attained and now_s >= self._held_until_s:
            wanted = max(wanted, number + 1)
        self._wanted.append((now_s, wanted))
        while self._wanted[0][0] < now_s - self.down_after_s:
            self._wanted.popleft()
        target = wanted if wanted > number else max(each for _, each in self._wanted)
        target = max(self.limits.least, min(self.limits.most, target, number + world.can_order()))
        if target == number or (target < number and now_s < self.down_after_s):
            return
        if target > number:
            self._held_until_s = now_s + world.start_s
        self.changes.append(CountChange(now_s, target, f"{busy:.0%} busy"))
        world.set_count(target)

    def _utilisation(self) -> float:
        """Of the workers that were ordered, since the last tick."""
        workers = self.world.workers.values()
        busy_ns, now_ns = sum(worker.busy_ns for worker in workers), self.world.kernel.now_ns()
        part = (busy_ns - self._busy_ns) / max(1, (now_ns - self._at_ns) * max(1, len(workers)))
        self._busy_ns, self._at_ns = busy_ns, now_ns
        return min(1.0, max(0.0, part))


@dataclass(slots=True, kw_only=True)
class PlannedCount:
    """The planner of numbers on virtual time, and the mode that was found best for what is there."""

    world: ElasticWorld
    planner: CountPlanner
    limits: CountLimits
    costs: WorkerCosts
    outlooks: Outlooks
    answer_s: float
    changes: list[CountChange] = field(default_factory=list)
    num_decisions: dict[str, int] = field(default_factory=dict)
    _modes: dict[int, Mode] = field(default_factory=dict)  # that was best last, by the number of workers
    _is_asking: bool = False

    def tick(self) -> None:
        world = self.world
        self.costs.learn(world.there, world.now_s)
        if self._is_asking:
            return
        self._share_work()
        window = world.window.look()
        num_there = len(world.there)
        unknown = "no worker is ready" if not num_there else ""
        if window.num_requests and window.demand is None:
            unknown = "no answer has ended yet"
        seen = CountSeen(
            now_s=world.now_s,
            num_there=num_there,
            num_coming=len(world.ordered) - num_there,
            start_s=world.start_s,
            unknown=unknown,
            num_requests=window.num_requests,
            num_waiting=0 if num_there else len(world.clients),
            demand=window.demand,
        )
        found = self.planner.question(seen)
        if isinstance(found, Demand):
            self._is_asking = True
            answers = self.planner.ask(seen, lambda number: self._best(number, found))
            world.kernel.call_after(seconds(self.answer_s), self._answered, seen, answers)
        else:
            self._carry_out(seen, found)

    def _answered(self, seen: CountSeen, answers: Mapping[int, ModeOutlook]) -> None:
        self._is_asking = False
        self.world.quiet.catch_up()
        self._carry_out(seen, self.planner.decide(seen, answers))

    def _carry_out(self, seen: CountSeen, found: CountDecision) -> None:
        self.num_decisions[found.verdict.value] = self.num_decisions.get(found.verdict.value, 0) + 1
        world, number = self.world, len(self.world.ordered)
        if number == seen.num_there + seen.num_coming and found.verdict in (
            CountVerdict.MORE,
            CountVerdict.FEWER,
            CountVerdict.GIVE_UP,
        ):
            target = min(found.num_workers, number + world.can_order())
            if target != number:
                self.changes.append(CountChange(world.now_s, target, found.reason))
                world.set_count(target)
        self._share_work()

    def _best(self, number: int, demand: Demand) -> ModeOutlook:
        facts = alike(self.costs.facts(self.world.there[:1])[0], number)
        mode, outlook = best_mode(
            number,
            self._modes.get(number),
            self.limits.goal,
            lambda mode: self.outlooks.of_facts(facts, mode, demand),
        )
        self._modes[number] = mode
        return outlook

    def _share_work(self) -> None:
        """Roles first: those of the best mode of as many workers as there are."""
        there = self.world.there
        mode = self._modes.get(len(there))
        if mode is None:
            return
        wanted = {each.worker_id: role for each, (_, role) in zip(there, mode.roles, strict=True)}
        changed: dict[str, Role] = {
            each.worker_id: wanted[each.worker_id] for each in there if parse_role(each.role) != wanted[each.worker_id]
        }
        if changed:
            self.world.window.set_roles(changed, f"{mode} of {len(there)} workers")


def fixed_modes(ids: Sequence[str]) -> tuple[Mode, ...]:
    """Of so many workers on machines of their own."""
    return modes_of({worker_id: [WorkerId(worker_id)] for worker_id in ids})
