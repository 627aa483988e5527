"""A world whose cluster gives workers and takes them back: an order takes its time, who leaves is drained.

Owns which workers are ordered, and how long each was paid for: from the order until its process has ended. How many
there should be is a rule's: `sim.day.counts` has some.
"""

from __future__ import annotations

from dataclasses import dataclass

from relevo.core.ids import WorkerId
from relevo.orchestrator.member import Member
from relevo.orchestrator.membership import Membership
from relevo.orchestrator.ports import WorkerStatus
from relevo.policy.scaling.scale_orders import LentNode, to_give_back
from relevo.sim.config import WorldConfig
from relevo.sim.kernel import seconds
from relevo.sim.role_world import RoleWorld
from relevo.sim.worker import SimWorker
from relevo.telemetry.latency import Slo
from relevo.workload.requests import Workload


@dataclass(slots=True)
class _Paid:
    since_ns: int
    until_ns: int | None = None  # None: it goes on


class ElasticWorld(RoleWorld):
    """The workers of `config` are those that there may be at most; the first `num_at_first` are there from the
    beginning."""

    def __init__(
        self, config: WorldConfig, workload: Workload, slo: Slo, *, num_at_first: int, start_s: float, tick_s: float
    ) -> None:
        super().__init__(config, workload, slo, tick_s=tick_s)
        self.start_s = start_s
        self._ids = [spec.worker_id for spec in config.regions[0].workers]
        self.ordered: set[str] = set(self._ids[:num_at_first])
        self._paid: dict[str, list[_Paid]] = {worker_id: [] for worker_id in self._ids}
        for worker_id in self.ordered:
            self._paid[worker_id].append(_Paid(self.traffic_at_ns))
        for worker_id in self._ids[num_at_first:]:
            self._membership.remove(WorkerId(worker_id))
        self._num_orders = 0
        self._last_order: dict[str, int] = {}

    @property
    def _membership(self) -> Membership:
        (gateway,) = self.gateways.values()
        return gateway.membership

    @property
    def there(self) -> tuple[WorkerStatus, ...]:
        """Those that serve and are to stay."""
        statuses = self.window.status().workers
        return tuple(each for each in statuses if each.ready and each.worker_id in self.ordered)

    def set_count(self, number: int) -> None:
        """Order workers, or give back: those that are not there first, then the last ones."""
        while len(self.ordered) < number:
            self._order(next(each for each in self._ids if each not in self.ordered and self._is_free(each)))
        serving = {each.worker_id for each in self.there}
        nodes = [LentNode(each, 1, serves=each in serving) for each in self._ids if each in self.ordered]
        for worker_id in to_give_back(nodes, len(self.ordered) - number):
            self._give_back(worker_id)

    def can_order(self) -> int:
        """How many more there may be now: who drains is not to be had yet."""
        return sum(1 for each in self._ids if each not in self.ordered and self._is_free(each))

    def worker_s(self, until_ns: int) -> float:
        """Seconds that were paid for, of all workers."""
        spans = [span for of_one in self._paid.values() for span in of_one]
        ends = [until_ns if span.until_ns is None else min(until_ns, span.until_ns) for span in spans]
        return sum(max(0, end - span.since_ns) for span, end in zip(spans, ends, strict=True)) / 1e9

    def start_worker(self, worker_id: str) -> None:
        if worker_id not in self.ordered or worker_id in self.workers:
            return
        if all(member.worker_id != worker_id for member in self._membership.members):
            self._membership.add(Member(WorkerId(worker_id), self._specs[worker_id].role, worker_id))
        super().start_worker(worker_id)

    def _is_free(self, worker_id: str) -> bool:
        return worker_id not in self.workers

    def _order(self, worker_id: str) -> None:
        self.ordered.add(worker_id)
        self._paid[worker_id].append(_Paid(self.kernel.now_ns()))
        self._num_orders += 1
        self._last_order[worker_id] = self._num_orders
        self.kernel.call_after(seconds(self.start_s), self._come, worker_id, self._num_orders)

    def _come(self, worker_id: str, order: int) -> None:
        """Unless the order was taken back, and perhaps given again."""
        if self._last_order.get(worker_id) == order:
            self.start_worker(worker_id)

    def _give_back(self, worker_id: str) -> None:
        """What it has goes on until it ends."""
        self.ordered.discard(worker_id)
        self._last_order.pop(worker_id, None)
        self._membership.remove(WorkerId(worker_id))
        if worker_id not in self.workers:
            self._paid[worker_id][-1].until_ns = self.kernel.now_ns()

    def _follow_up(self, worker: SimWorker) -> None:
        super()._follow_up(worker)
        if worker.config.worker_id not in self.ordered:
            self._paid[worker.config.worker_id][-1].until_ns = self.kernel.now_ns()
