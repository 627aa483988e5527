"""What a gateway keeps so that rates and histories can be told: counters of the last minute, intervals of the last ten.

Owns the moments. `observe` is to be called about every five seconds, at least (`keep_watching`), and whenever the state
is asked for; nothing else runs. Time is that of the monotonic clock laid onto the wall clock at the start, so that a
clock that is set does not tear a history. Memory is bounded by the workers and models that there are.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from relevo.core.ids import WorkerId, WorkerRef
from relevo.gateway.console.audience import Audience
from relevo.gateway.console.intervals import INTERVAL_S, Interval, IntervalRing, interval_of
from relevo.gateway.console.past import Past
from relevo.gateway.console.running import Slowest
from relevo.gateway.text.served_models import ServedModel, ServedModels
from relevo.orchestrator.insight import Insight
from relevo.orchestrator.ports import EngineStatus
from relevo.telemetry.latency_histogram import LatencyHistogram

RATE_S = 4.0  # rates are over at least so long, where there is a sample that old; arbitrary
MINUTE_S = 60.0
_MAX_SAMPLES = 80  # one a second for a minute, and some

WorkerKey = tuple[str, str]  # model, worker id
FlowKey = tuple[str, str, str, str]  # kind, model, from, to; the gateway itself is ""
FlowCounts = tuple[int, int, int]  # requests, tokens, bytes


class CounterSource(Protocol):
    """See `gateway.http.context.RequestMetrics`."""

    def worker_totals(self, statuses: Mapping[str, EngineStatus]) -> Mapping[WorkerKey, Mapping[str, float]]: ...

    def counts(self, name: str) -> Sequence[tuple[Mapping[str, str], float]]: ...


@dataclass(frozen=True, slots=True)
class Sample:
    """Counters at one moment."""

    at_s: float
    workers: Mapping[WorkerKey, Mapping[str, float]]
    flows: Mapping[FlowKey, FlowCounts]


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """What is known at one moment, of this gateway alone."""

    at_s: float  # Unix
    statuses: Mapping[str, EngineStatus]  # by model
    sample: Sample
    recent: Sample | None  # some seconds before, for rates; None: this is the first
    minute: Sample | None  # up to a minute before
    intervals: Mapping[str, tuple[Interval, ...]]  # by model, closed ones and the one under way
    open_number: int  # of that one


@dataclass(slots=True)
class Watch:
    """For one event loop."""

    monotonic_s: Callable[[], float] = time.monotonic
    unix_s: Callable[[], float] = time.time
    audience: Audience = field(default_factory=Audience)
    slowest: Slowest = field(default_factory=Slowest)
    past: Past = field(default_factory=Past)
    _samples: deque[Sample] = field(default_factory=lambda: deque(maxlen=_MAX_SAMPLES))
    _rings: dict[str, IntervalRing] = field(default_factory=dict)
    _num_refusals: dict[str, int] = field(default_factory=dict)  # by model, when the interval began
    _open_number: int = 0
    _zero_s: float = field(init=False)

    def __post_init__(self) -> None:
        self._zero_s = self.unix_s() - self.monotonic_s()
        self._open_number = int(self.now_s()) // INTERVAL_S

    def now_s(self) -> float:
        """Unix time that never goes back."""
        return self._zero_s + self.monotonic_s()

    def unix_of_ns(self, monotonic_ns: int) -> float:
        """Of a point in time of this process."""
        return self._zero_s + monotonic_ns / 1e9

    def observe(self, models: ServedModels, metrics: CounterSource) -> Observed:
        now_s = self.now_s()
        statuses = {served.name: served.generator.status() for served in models}
        for served in models:
            workers = statuses[served.name].workers
            refs = frozenset(WorkerRef(WorkerId(worker.worker_id), worker.epoch) for worker in workers)
            served.insight.keep_only(refs)
        refusals = _refusals(models, metrics)
        number = int(now_s) // INTERVAL_S
        if number > self._open_number:
            for served in models:
                self._close(served, refusals[served.name], statuses[served.name].num_queued)
            self._open_number = number
        sample = Sample(now_s, metrics.worker_totals(statuses), _flows(models))
        recent, minute = self._before(now_s - RATE_S), self._before(now_s - MINUTE_S)
        if not self._samples or now_s - self._samples[-1].at_s >= MINUTE_S / _MAX_SAMPLES:
            self._samples.append(sample)
        return Observed(
            at_s=now_s,
            statuses=statuses,
            sample=sample,
            recent=recent,
            minute=minute,
            intervals={served.name: self._intervals(served, refusals[served.name]) for served in models},
            open_number=self._open_number,
        )

    def _before(self, at_s: float) -> Sample | None:
        """The last sample up to then; if there is none so old, the oldest."""
        found = self._samples[0] if self._samples else None
        for sample in self._samples:
            if sample.at_s > at_s:
                break
            found = sample
        return found

    def _close(self, served: ServedModel, num_refusals: int, num_queued: int) -> None:
        insight = served.insight
        gaps = {str(worker_id): histogram for worker_id, histogram in insight.take_gaps().items()}
        since = num_refusals - self._num_refusals.get(served.name, 0)
        interval = interval_of(self._open_number, insight.latency.take(), gaps, since, num_queued)
        self._rings.setdefault(served.name, IntervalRing()).close(interval)
        self._num_refusals[served.name] = num_refusals

    def _intervals(self, served: ServedModel, num_refusals: int) -> tuple[Interval, ...]:
        insight = served.insight
        ring = self._rings.get(served.name)
        since = num_refusals - self._num_refusals.get(served.name, 0)
        open_one = interval_of(self._open_number, insight.latency, _open_gaps(insight), since, None)
        return (*(ring.kept if ring is not None else ()), open_one)


async def keep_watching(watch: Watch, models: ServedModels, metrics: CounterSource) -> None:
    """Until cancelled: observe at the end of each interval, whether or not there are viewers."""
    while True:
        await asyncio.sleep(INTERVAL_S - watch.now_s() % INTERVAL_S)
        watch.observe(models, metrics)


def _refusals(models: ServedModels, metrics: CounterSource) -> dict[str, int]:
    counts = metrics.counts("vllm:admission_rejections_total")
    return {
        served.name: int(sum(value for labels, value in counts if labels["model_name"] in served.names))
        for served in models
    }


def _open_gaps(insight: Insight) -> dict[str, LatencyHistogram]:
    return {str(worker.worker_id): outputs.gaps for worker, outputs in insight.outputs.items()}


def _flows(models: ServedModels) -> dict[FlowKey, FlowCounts]:
    found: dict[FlowKey, FlowCounts] = {}
    for served in models:
        model, insight = served.name, served.insight
        for worker_id, carried in insight.prompts.items():
            found["prompt", model, "", worker_id] = (carried.num_requests, carried.num_tokens, carried.num_bytes)
        for worker, outputs in insight.outputs.items():
            found["output", model, worker.worker_id, ""] = (outputs.num_requests, outputs.num_tokens, 0)
        for (source, target), carried in insight.handoffs.items():
            found["handoff", model, source, target] = (carried.num_requests, carried.num_tokens, carried.num_bytes)
    return found
