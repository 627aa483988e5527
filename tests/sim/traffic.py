"""Clients that ask at given times, and what came of each: for worlds under more load than they can take."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from worlds import assert_nothing_is_left

from relevo.core.request import BATCH_PRIORITY, ServiceTerms
from relevo.sim.clients import Client, Habits
from relevo.sim.config import WorldConfig
from relevo.sim.kernel import seconds
from relevo.sim.world import World
from relevo.workload.requests import Workload, WorkloadRequest


@dataclass
class Asked:
    """One request as its client sees it. Times are of the traffic's clock."""

    at_s: float
    num_prompt: int
    num_outputs: int
    habits: Habits
    ttft_s: float | None = None
    ended_at_s: float | None = None
    refused: str = ""  # the limit
    retry_after_s: float = 0.0

    @property
    def is_complete(self) -> bool:
        return self.ended_at_s is not None and not self.refused


@dataclass
class Traffic:
    """`run` once, after all have asked."""

    config: WorldConfig
    seed: int = 0
    asked: list[Asked] = field(default_factory=list)
    most_waiting: int = 0
    windows: list[tuple[float, float]] = field(default_factory=list)  # of which the busy fractions are wanted
    busy: dict[tuple[str, float], float] = field(default_factory=dict)  # seconds by worker, up to a time

    def __post_init__(self) -> None:
        self.rng = Random(self.seed)

    def ask(
        self,
        at_s: float,
        *,
        num_prompt: int = 100,
        num_outputs: int = 20,
        priority: int = 0,
        gone_after_s: float | None = None,
        **terms: Any,
    ) -> Asked:
        habits = Habits(
            terms=ServiceTerms(**terms),
            priority=priority + BATCH_PRIORITY * bool(terms.get("is_batch")),
            leaves_after_s=gone_after_s,
            ignores_eos=True,
        )
        self.asked.append(Asked(at_s, num_prompt, num_outputs, habits))
        return self.asked[-1]

    def poisson(self, rate_per_s: float, from_s: float, to_s: float, **shape: Any) -> None:
        at_s = from_s + self.rng.expovariate(rate_per_s)
        while at_s < to_s:
            self.ask(at_s, **shape)
            at_s += self.rng.expovariate(rate_per_s)

    def run(self) -> None:
        rows = [
            WorkloadRequest(
                row=row,
                num_prompt_tokens=each.num_prompt,
                num_output_tokens=each.num_outputs,
                arrived_at_s=each.at_s,
            )
            for row, each in enumerate(self.asked)
        ]
        self.world = World(
            replace(self.config, seed=self.seed),
            Workload(requests=rows),
            habits=lambda row: self.asked[row.row].habits,
            on_end=self._ended,
        )
        self.world.start()
        for each in self.asked:
            self.world.kernel.call_at(self.world.traffic_at_ns + seconds(each.at_s), self._look)
        for at_s in {at_s for window in self.windows for at_s in window}:
            self.world.kernel.call_at(self.world.traffic_at_ns + seconds(at_s), self._note_busy, at_s)
        self.world.kernel.run()
        self.world.finish()
        assert_nothing_is_left(self.world)

    def _look(self) -> None:
        waiting = [gateway.admission.num_queued_requests for gateway in self.world.gateways.values()]
        self.most_waiting = max(self.most_waiting, *waiting)

    def _note_busy(self, at_s: float) -> None:
        for worker_id, worker in self.world.workers.items():
            worker.catch_up()
            self.busy[worker_id, at_s] = worker.busy_ns / 1e9

    def _ended(self, client: Client) -> None:
        asked, result, end = self.asked[client.row.row], client.result, client.end
        assert end is not None and result.ended_at_ns is not None
        asked.ended_at_s = (result.ended_at_ns - self.world.traffic_at_ns) / 1e9
        if result.token_at_ns[0]:
            asked.ttft_s = (result.token_at_ns[0][0] - result.arrived_at_ns) / 1e9
        if end.code is not None or end.outcome.value == "aborted":
            asked.refused, asked.retry_after_s = end.limit or end.code or "client left", end.retry_after_s or 0.0

    # ---- what came of it ---------------------------------------------------------------------------------------------

    def between(self, from_s: float, to_s: float) -> Iterator[Asked]:
        return (asked for asked in self.asked if from_s <= asked.at_s < to_s)

    def good(self, slo_ttft_s: float, from_s: float, to_s: float) -> float:
        """Requests per second that completed within the window and had their first token in time."""
        met = [
            each
            for each in self.asked
            if each.is_complete
            and each.ttft_s is not None
            and each.ttft_s <= slo_ttft_s
            and from_s <= (each.ended_at_s or 0.0) < to_s
        ]
        return len(met) / (to_s - from_s)

    def refusals(self) -> Counter[str]:
        return Counter(each.refused for each in self.asked if each.refused)

    def busy_fraction(self, worker_id: str, window: tuple[float, float]) -> float:
        """Of the time, that it spent in steps."""
        from_s, to_s = window
        return (self.busy[worker_id, to_s] - self.busy[worker_id, from_s]) / (to_s - from_s)
