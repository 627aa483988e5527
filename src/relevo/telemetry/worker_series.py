"""Series whose values workers report: collected at the scrape, kept monotonic across restarts.

A worker counts from its start. What a former incarnation had counted when it was last seen is added to what the
present one counts, so an exported counter never falls (work done between the last report and a crash is not counted).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from relevo.core.events import ExpertLoads, StepCounters, WireRefusal, WorkerLimits, WorkerLoad, WorkerPort, refused_key
from relevo.core.kv import KVLayout, KVRefusal
from relevo.telemetry.metric import Kind, Metric, Origin
from relevo.telemetry.metric_table import BY_NAME, TABLE
from relevo.telemetry.worker_metrics import EXPERT_RANK_TOKENS, EXPERT_TOKENS, WAITING_REASONS

_Family = GaugeMetricFamily | CounterMetricFamily

GATEWAY = "gateway"  # value of `engine` and `role` where no worker measured


class WorkerView(Protocol):
    """What a scrape needs to know of a worker; `orchestrator.ports.WorkerStatus` has it."""

    @property
    def worker_id(self) -> str: ...
    @property
    def role(self) -> str: ...
    @property
    def ready(self) -> bool: ...
    @property
    def epoch(self) -> int: ...  # 0: never seen; 1: first incarnation
    @property
    def load(self) -> WorkerLoad: ...
    @property
    def counters(self) -> StepCounters: ...
    @property
    def expert_loads(self) -> ExpertLoads: ...
    @property
    def layout(self) -> KVLayout | None: ...
    @property
    def limits(self) -> WorkerLimits: ...


class LineView(Protocol):
    """What waits in the gateway, of one class; `orchestrator.ports.LineStatus` has it."""

    @property
    def name(self) -> str: ...
    @property
    def num_waiting(self) -> int: ...
    @property
    def oldest_wait_s(self) -> float: ...


class StatusView(Protocol):
    """`orchestrator.ports.EngineStatus`, as far as metrics read it."""

    @property
    def num_queued(self) -> int: ...
    @property
    def num_in_flight(self) -> int: ...
    @property
    def workers(self) -> Sequence[WorkerView]: ...
    @property
    def lines(self) -> Sequence[LineView]: ...


@dataclass(slots=True)
class _Incarnations:
    """Counters of one worker: what former incarnations counted, and the most the present one has shown."""

    epoch: int = 0
    former: dict[str, float] = field(default_factory=dict)
    present: dict[str, float] = field(default_factory=dict)

    def observe(self, epoch: int, values: Iterable[tuple[str, float]]) -> None:
        if epoch not in (0, self.epoch):
            self.former = self.totals()
            self.epoch, self.present = epoch, {}
        for name, value in values:
            # a new connection to the same incarnation shows zeros until its first report
            self.present[name] = max(self.present.get(name, 0), value)

    def totals(self) -> dict[str, float]:
        return {name: self.former.get(name, 0) + self.present.get(name, 0) for name in self.former | self.present}


def _values(counters: StepCounters) -> Iterator[tuple[str, float]]:
    """Each number by its name; those of a mapping by their keys."""
    for counter in fields(counters):
        value = getattr(counters, counter.name)
        yield from value.items() if isinstance(value, dict) else ((counter.name, value),)


def _by_expert(loads: ExpertLoads) -> Iterator[tuple[str, float]]:
    """By what it is of, layer and number: expert/3/0 and rank/3/0."""
    for kind, by_layer in (("expert", loads.tokens), ("rank", loads.ranks)):
        for layer, counts in zip(loads.layers, by_layer, strict=False):
            yield from ((f"{kind}/{layer}/{number}", count) for number, count in enumerate(counts))


class WorkerSeries(Collector):
    """Turns the statuses of one scrape, by model name, into metric families."""

    def __init__(self) -> None:
        self._incarnations: dict[tuple[str, str], _Incarnations] = {}  # by model name and worker id
        self._experts: dict[tuple[str, str], _Incarnations] = {}  # likewise, of workers whose model has any
        self._statuses: Mapping[str, StatusView] = {}

    def observe(self, statuses: Mapping[str, StatusView]) -> None:
        """Take `statuses` for the next `collect`."""
        self._statuses = statuses
        for model_name, status in statuses.items():
            for worker in status.workers:
                incarnations = self._incarnations.setdefault((model_name, worker.worker_id), _Incarnations())
                incarnations.observe(worker.epoch, _values(worker.counters))
                if worker.expert_loads.layers:
                    experts = self._experts.setdefault((model_name, worker.worker_id), _Incarnations())
                    experts.observe(worker.epoch, _by_expert(worker.expert_loads))

    def totals(self, model_name: str, worker_id: str) -> Mapping[str, float]:
        """By the names of `core.events.StepCounters`, and `num_restarts`: what /metrics says of a worker that was
        observed."""
        incarnations = self._incarnations[model_name, worker_id]
        return {**incarnations.totals(), "num_restarts": max(incarnations.epoch - 1, 0)}

    def collect(self) -> Iterable[_Family]:
        if not self._statuses:
            return
        families = {metric.name: _family(metric) for metric in TABLE if metric.origin is Origin.WORKERS}
        for model_name, status in self._statuses.items():
            self._add_gateway(families, model_name, status)
            self._add_workers(families, model_name, status)
        yield from families.values()

    def _add_workers(self, families: Mapping[str, _Family], model_name: str, status: StatusView) -> None:
        for worker in status.workers:
            labels = {
                "model_name": model_name,
                "engine": worker.worker_id,
                "worker": worker.worker_id,
                "role": worker.role,
            }
            for name, value in _gauges(worker).items():
                _add(families, name, labels, value)
            incarnations = self._incarnations[model_name, worker.worker_id]
            if (experts := self._experts.get((model_name, worker.worker_id))) is not None:
                for place, num_tokens in experts.totals().items():
                    kind, layer, number = place.split("/")
                    name = EXPERT_TOKENS if kind == "expert" else EXPERT_RANK_TOKENS
                    _add(families, name, labels | {"layer": layer, kind: number}, num_tokens)
            for name, limit in _limits(worker.limits).items():
                if limit is not None:
                    _add(families, name, labels, limit)
            for name, value in (_counters(incarnations) | _since_start(incarnations)).items():
                _add(families, name, labels, value)
            for (door, reason), count in _refused(incarnations).items():
                _add(families, "relevo:refused_connections_total", labels | {"door": door, "reason": reason}, count)
            _add_waiting(families, labels, worker.load.num_waiting)
            for per, cost_s in _step_costs(worker.load).items():
                _add(families, "relevo:step_cost_seconds", labels | {"per": per}, cost_s)
            for state, num_blocks in _blocks(worker.load).items():
                _add(families, "relevo:blocks", labels | {"state": state}, num_blocks)
            if worker.layout is not None and worker.load.num_total_blocks:
                _add(families, "vllm:cache_config_info", labels | _cache_labels(worker.layout, worker.load), 1)

    def _add_gateway(self, families: Mapping[str, _Family], model_name: str, status: StatusView) -> None:
        labels = {"model_name": model_name, "engine": GATEWAY, "role": GATEWAY}
        _add(families, "vllm:num_requests_waiting", labels, status.num_queued)
        _add_waiting(families, labels, status.num_queued)
        _add(families, "relevo:requests_in_flight", labels, status.num_in_flight)
        for line in status.lines:
            _add(families, "relevo:requests_in_line", labels | {"class": line.name}, line.num_waiting)
            _add(families, "relevo:oldest_wait_seconds", labels | {"class": line.name}, line.oldest_wait_s)


def _family(metric: Metric) -> _Family:
    if metric.kind is Kind.COUNTER:
        return CounterMetricFamily(metric.name, metric.help, labels=metric.labels)
    return GaugeMetricFamily(metric.name, metric.help, labels=metric.labels)


def _add(families: Mapping[str, _Family], name: str, labels: Mapping[str, str], value: float) -> None:
    families[name].add_metric([labels[label] for label in BY_NAME[name].labels], value)


def _add_waiting(families: Mapping[str, _Family], labels: Mapping[str, str], num_waiting: int) -> None:
    for reason in WAITING_REASONS:
        value = num_waiting if reason == "capacity" else 0
        _add(families, "vllm:num_requests_waiting_by_reason", {**labels, "reason": reason}, value)


def _gauges(worker: WorkerView) -> dict[str, float]:
    load = worker.load
    num_taken = load.num_held_blocks + load.num_quarantined_blocks
    return {
        "vllm:num_requests_running": load.num_running,
        "vllm:num_requests_waiting": load.num_waiting,
        "vllm:kv_cache_usage_perc": num_taken / load.num_total_blocks if load.num_total_blocks else 0.0,
        "relevo:worker_up": float(worker.ready),
    }


def _counters(incarnations: _Incarnations) -> dict[str, float]:
    totals = incarnations.totals()
    return {
        "vllm:generation_tokens_total": totals["num_generation_tokens"],
        "vllm:prefix_cache_queries_total": totals["num_prefix_queries"],
        "vllm:prefix_cache_hits_total": totals["num_prefix_hits"],
        "vllm:num_preemptions_total": totals["num_preemptions"],
        "relevo:prefill_tokens_total": totals["num_prefill_tokens"],
        "relevo:decode_tokens_total": totals["num_generation_tokens"],
        "relevo:steps_total": totals["num_steps"],
        "relevo:worker_busy_seconds_total": totals["busy_s"],
        "relevo:worker_product_ops_total": totals["product_ops"],
        "relevo:worker_read_bytes_total": totals["read_bytes"],
        "relevo:kv_transfer_bytes_total": totals["transferred_bytes"],
        "relevo:kv_transfer_seconds_total": totals["transfer_s"],
        "relevo:refused_writes_total": totals["num_refused_writes"],
        "relevo:request_faults_total": totals["num_request_faults"],
        "relevo:worker_restarts_total": max(incarnations.epoch - 1, 0),
    }


def _limits(limits: WorkerLimits) -> dict[str, float | None]:
    return {
        "relevo:worker_product_limit_ops_per_second": limits.product_ops_per_s,
        "relevo:worker_read_limit_bytes_per_second": limits.read_bytes_per_s,
    }


def _since_start(incarnations: _Incarnations) -> dict[str, float]:
    """Of the present incarnation alone."""
    names = ("largest_step_tokens", "step_budget_tokens", "prefill_budget_tokens")
    return {f"relevo:{name}": incarnations.present.get(name, 0) for name in names}


def _refused(incarnations: _Incarnations) -> dict[tuple[str, str], float]:
    """By door and reason, every one that there can be."""
    totals = incarnations.totals()
    reasons: dict[WorkerPort, type[KVRefusal] | type[WireRefusal]] = {
        WorkerPort.KV: KVRefusal,
        WorkerPort.WIRE: WireRefusal,
    }
    return {(d, reason): totals.get(refused_key(d, reason), 0) for d, kinds in reasons.items() for reason in kinds}


def _step_costs(load: WorkerLoad) -> dict[str, float]:
    costs = load.costs
    return {"step": costs.base_s, "token": costs.per_token_s, "kv_token": costs.per_kv_token_s}


def _blocks(load: WorkerLoad) -> dict[str, int]:
    return {
        "free": load.num_free_blocks,
        "reusable": load.num_reusable_blocks,
        "held": load.num_held_blocks,
        "quarantined": load.num_quarantined_blocks,
    }


def _cache_labels(layout: KVLayout, load: WorkerLoad) -> dict[str, str]:
    return {
        "block_size": str(layout.block_size),
        "num_gpu_blocks": str(load.num_total_blocks),
        "cache_dtype": layout.dtype,
    }
