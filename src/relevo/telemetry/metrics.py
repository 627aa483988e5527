"""The gateway's Prometheus metrics: what to record when, on a registry of its own.

Owns which series an event moves. Names and buckets are in `metric_table`, workers' values in `worker_series`. Not
thread-safe against itself: one event loop records and renders.

Series of requests carry engine="gateway": they are measured where the client is, over all workers. Latencies of whole
requests are of completed ones only (stop or length), so that aborts and failures do not flatter them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from relevo.core.request import FinishReason
from relevo.telemetry.bulk_observation import observe_many
from relevo.telemetry.latency import RequestRecord
from relevo.telemetry.log import num_not_written
from relevo.telemetry.merged_series import SeriesFamily, merged, scraped
from relevo.telemetry.metric import Kind, Metric, Origin
from relevo.telemetry.metric_table import TABLE
from relevo.telemetry.tenant_counters import TenantCounters
from relevo.telemetry.text_format import PLAIN, TextFormat
from relevo.telemetry.worker_series import GATEWAY, StatusView, WorkerSeries

_COMPLETED = frozenset((FinishReason.STOP, FinishReason.LENGTH))
_METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"))


class NumberView(Protocol):
    """What is shown of how many workers a planner wants."""

    @property
    def number(self) -> int | None: ...  # None: not known yet

    @property
    def num_decisions(self) -> Mapping[str, int]: ...  # by verdict

    @property
    def num_commands(self) -> Mapping[str, int]: ...  # by outcome


class PlanView(Protocol):
    """What is shown of a model's planner."""

    @property
    def model(self) -> str: ...

    @property
    def num_decisions(self) -> Mapping[str, int]: ...  # by verdict

    @property
    def mode_now(self) -> str: ...  # empty: not known yet

    @property
    def number(self) -> NumberView | None: ...  # of workers; None: it is not planned


class ClusterCounts(Protocol):
    """What is shown of a cluster, as the node process of this box tells it."""

    @property
    def num_nodes(self) -> Mapping[str, int]: ...  # by state

    @property
    def num_denied(self) -> Mapping[str, int]: ...  # joins, by reason

    @property
    def num_gone(self) -> int: ...

    @property
    def round_trips_s(self) -> Mapping[str, float]: ...  # of heartbeats, by node

    @property
    def num_refused(self) -> Mapping[str, int]: ...  # connections to the control port, by reason

    @property
    def num_fences(self) -> Mapping[str, int]: ...  # by node

    @property
    def certificates_left(self) -> Mapping[str, float]: ...  # by node


class GatewayMetrics:
    """`model_names` label the zeros that are there before the first request; see `render` for what workers report.
    `by_tenant`: tell tenants apart, by name."""

    def __init__(self, model_names: Sequence[str], *, by_tenant: bool = False) -> None:
        self._registry = CollectorRegistry()
        self._counters: dict[str, Counter] = {}
        self._histograms: dict[str, Histogram] = {}
        self._gauges: dict[str, Gauge] = {}
        for metric in TABLE:
            if metric.origin in (Origin.REQUESTS, Origin.LEDGER):
                self._register(metric, model_names)
        self._tenants = TenantCounters(self._registry) if by_tenant else None
        self._num_told: dict[tuple[str, ...], int] = {}  # of what others count, by metric and reason
        self._num_dropped_traces: Callable[[], Mapping[str, int]] = dict
        self._plans: Callable[[], Sequence[PlanView]] = tuple
        self._cluster: ClusterCounts | None = None
        self._listeners: list[Callable[[RequestRecord], None]] = []
        self._workers = WorkerSeries()
        self._registry.register(self._workers)
        self._gauges["relevo:ledger_up"].set(1)
        self._gauges["relevo:keys_up"].set(1)

    def on_request_finished(self, listener: Callable[[RequestRecord], None]) -> None:
        """It is told what `request_finished` is."""
        self._listeners.append(listener)

    def request_finished(self, record: RequestRecord) -> None:
        """Count an admitted request that has ended, however it ended. Call once per request."""
        for listener in self._listeners:
            listener(record)
        labels = {"model_name": record.model, "engine": GATEWAY}
        self._counters["vllm:request_success_total"].labels(**labels, finished_reason=record.finish_reason).inc()
        exemplar = _exemplar(record)
        self._observe("vllm:time_to_first_token_seconds", labels, record.times.ttft_s, exemplar)
        gaps = self._histograms["vllm:inter_token_latency_seconds"].labels(**labels)  # looked up once for many
        gaps_s = record.times.itl_s
        if exemplar and gaps_s:
            worst_s = max(gaps_s)
            gaps_s.remove(worst_s)
            gaps.observe(worst_s, exemplar)
        observe_many(gaps, gaps_s)
        self._observe("vllm:request_params_n", labels, record.n)
        self._observe("vllm:request_params_max_tokens", labels, record.max_tokens)
        self._count_prompt(record, labels, exemplar)
        if self._tenants is not None:
            self._tenants.request_finished(record)
        if record.finish_reason in _COMPLETED:
            self._observe_completed(record, labels, exemplar)

    def admission_rejected(self, model: str, reason: str) -> None:
        """`reason`: one of few fixed texts, it becomes a label."""
        self._counters["vllm:admission_rejections_total"].labels(model_name=model, reason=reason).inc()

    def deadline_missed(self, model: str, when: str) -> None:
        """A request ended because its client's time was over. `when`: one of metric_table.MISSED_WHEN."""
        self._counters["relevo:deadline_misses_total"].labels(model_name=model, when=when).inc()

    def left_line(self, model: str, class_name: str, waited_s: float) -> None:
        """`class_name`: one of metric_table.CLASSES."""
        self._observe("relevo:line_wait_seconds", {"model_name": model, "class": class_name}, waited_s)

    def request_fault(self, model: str) -> None:
        """A request ended because code of this gateway raised while it was handled."""
        self._counters["relevo:gateway_request_faults_total"].labels(model_name=model).inc()

    def handoff_finished(
        self, model: str, outcome: str, handoff_s: float, transferred_bytes: int, transfer_s: float
    ) -> None:
        """`outcome`: one of metric_table.HANDOFF_OUTCOMES; the durations and bytes count for "completed" only."""
        labels = {"model_name": model}
        self._counters["relevo:handoffs_total"].labels(**labels, outcome=outcome).inc()
        if outcome == "completed":
            self._observe("relevo:handoff_seconds", labels, handoff_s)
            self._observe("relevo:handoff_transfer_seconds", labels, transfer_s)
            self._observe("relevo:handoff_transfer_bytes", labels, transferred_bytes)

    def engine_handoff(self, model: str, outcome: str) -> None:
        """`outcome`: one of metric_table.ENGINE_HANDOFFS."""
        self._counters["relevo:engine_handoffs_total"].labels(model_name=model, outcome=outcome).inc()

    def engine_pairs(self, model: str, num_paired: int, num_unpaired: int) -> None:
        for state, number in (("paired", num_paired), ("unpaired", num_unpaired)):
            self._gauges["relevo:engine_pairs"].labels(model_name=model, state=state).set(number)

    def ledger_kept(self, outcomes: Sequence[str], commit_s: float) -> None:
        """One transaction of the usage ledger: the outcome of each row (one of metric_table.OUTCOMES)."""
        for outcome in outcomes:
            self._counters["relevo:ledger_rows_total"].labels(outcome=outcome).inc()
        self._observe("relevo:ledger_commit_seconds", {}, commit_s)

    def ledger_failed(self) -> None:
        self._counters["relevo:ledger_write_failures_total"].inc()

    def ledger_pending(self, num_rows: int, *, is_up: bool) -> None:
        self._gauges["relevo:ledger_pending_rows"].set(num_rows)
        self._gauges["relevo:ledger_up"].set(is_up)

    def keys_read(self, *, is_up: bool) -> None:
        self._gauges["relevo:keys_up"].set(is_up)

    def ledger_journaled(self, num_rows: int) -> None:
        """Rows were kept in the journal, because the database did not take them."""
        self._counters["relevo:ledger_journal_rows_total"].labels(event="written").inc(num_rows)

    def ledger_replayed(self, num_rows: int, num_corrupt_lines: int) -> None:
        """What the journals of former processes held."""
        self._counters["relevo:ledger_journal_rows_total"].labels(event="replayed").inc(num_rows)
        self._counters["relevo:ledger_journal_rows_total"].labels(event="corrupt").inc(num_corrupt_lines)

    def http_response(self, handler: str, method: str, status: int) -> None:
        """`handler`: the route's pattern, not the path that the client sent. `status`: the code, e.g. 200."""
        method = method if method in _METHODS else "OTHER"
        self._counters["http_requests_total"].labels(handler=handler, method=method, status=f"{status // 100}xx").inc()

    def http_took(self, handler: str, method: str, took_s: float) -> None:
        method = method if method in _METHODS else "OTHER"
        self._observe("http_request_duration_seconds", {"handler": handler, "method": method}, took_s)

    def connections_open(self, num_open: int) -> None:
        self._gauges["relevo:http_connections"].set(num_open)

    def connection_refused(self, reason: str) -> None:
        """`reason`: one of metric_table.CONNECTION_REFUSALS."""
        self._counters["relevo:http_connections_refused_total"].labels(reason=reason).inc()

    def connection_timed_out(self, waited_for: str) -> None:
        """`waited_for`: one of metric_table.CONNECTION_WAITS."""
        self._counters["relevo:http_connections_timed_out_total"].labels(waited_for=waited_for).inc()

    def worker_totals(self, statuses: Mapping[str, StatusView]) -> dict[tuple[str, str], Mapping[str, float]]:
        """Counters of each worker over all its incarnations, as a scrape at this instant would show them; by model
        and worker id."""
        self._workers.observe(statuses)
        return {
            (model_name, worker.worker_id): self._workers.totals(model_name, worker.worker_id)
            for model_name, status in statuses.items()
            for worker in status.workers
        }

    def counts(self, name: str) -> list[tuple[Mapping[str, str], float]]:
        """The values of one counter that requests move, with the labels of each."""
        families = self._counters[name].collect()
        return [(each.labels, each.value) for family in families for each in family.samples if each.name == name]

    def _observe_now(self, statuses: Mapping[str, StatusView]) -> None:
        self._workers.observe(statuses)
        self._take_counts("relevo:log_lines_not_written_total", num_not_written())
        self._take_counts("relevo:traces_dropped_total", self._num_dropped_traces())
        self._take_plans(self._plans())
        if self._cluster is not None:
            self._take_cluster(self._cluster)

    def count_dropped_traces(self, num_dropped: Callable[[], Mapping[str, int]]) -> None:
        """`num_dropped`: so far, by reason; asked at each scrape."""
        self._num_dropped_traces = num_dropped

    def show_cluster(self, cluster: ClusterCounts | None) -> None:
        """Looked at at each scrape; None: there is none."""
        self._cluster = cluster
        for metric in TABLE if cluster is not None else ():
            if metric.origin is Origin.CLUSTER:
                self._register(metric, ())
                for value in metric.label_values:
                    self._counters[metric.name].labels(value)

    def _take_cluster(self, cluster: ClusterCounts) -> None:
        for name, label, values in (
            ("relevo:nodes", "state", cluster.num_nodes),
            ("relevo:node_heartbeat_seconds", "node", cluster.round_trips_s),
            ("relevo:node_certificate_left", "node", cluster.certificates_left),
        ):
            gauge = self._gauges[name]
            gauge.clear()
            for value, number in values.items():
                gauge.labels(**{label: value}).set(number)
        self._grow("relevo:nodes_gone_total", {}, cluster.num_gone)
        for reason, number in cluster.num_denied.items():
            self._grow("relevo:node_joins_denied_total", {"reason": reason}, number)
        for reason, number in cluster.num_refused.items():
            self._grow("relevo:control_port_refused_total", {"reason": reason}, number)
        for node, number in cluster.num_fences.items():
            self._grow("relevo:node_fences_total", {"node": node}, number)

    def _grow(self, name: str, labels: dict[str, str], told: int) -> None:
        """`told` counts since the start of another process, which may have been started again."""
        key = (name, *labels.values())
        before = self._num_told.get(key, 0)
        counter = self._counters[name].labels(**labels) if labels else self._counters[name]
        counter.inc(told - before if told >= before else told)
        self._num_told[key] = told

    def show_plans(self, plans: Callable[[], Sequence[PlanView]]) -> None:
        """Asked at each scrape."""
        self._plans = plans

    def _take_plans(self, plans: Sequence[PlanView]) -> None:
        mode, wanted = self._gauges["relevo:planner_mode_info"], self._gauges["relevo:planner_wanted_workers"]
        mode.clear()  # of former modes nothing is said
        wanted.clear()
        for plan in plans:
            self._grow_each("relevo:planner_decisions_total", "verdict", plan.model, plan.num_decisions)
            if plan.mode_now:
                mode.labels(model_name=plan.model, mode=plan.mode_now).set(1)
            if plan.number is None:
                continue
            number = plan.number
            self._grow_each("relevo:planner_number_decisions_total", "verdict", plan.model, number.num_decisions)
            self._grow_each("relevo:planner_scale_commands_total", "outcome", plan.model, number.num_commands)
            if number.number is not None:
                wanted.labels(model_name=plan.model).set(number.number)

    def _grow_each(self, name: str, label: str, model: str, numbers: Mapping[str, int]) -> None:
        for value, number in numbers.items():
            self._grow(name, {"model_name": model, label: value}, number)

    def _take_counts(self, name: str, numbers: Mapping[str, int]) -> None:
        for reason, number in numbers.items():
            self._counters[name].labels(reason=reason).inc(number - self._num_told.get((name, reason), 0))
            self._num_told[name, reason] = number

    def render(self, statuses: Mapping[str, StatusView], text: TextFormat = PLAIN) -> tuple[bytes, str]:
        """The body of /metrics and its content type. `statuses`: by model name."""
        self._observe_now(statuses)
        return text.write(self._registry), text.content_type

    def scrape(self, statuses: Mapping[str, StatusView]) -> tuple[SeriesFamily, ...]:
        """What `render` shows, for `render_merged` of another gateway."""
        self._observe_now(statuses)
        return scraped(self._registry)

    def render_merged(
        self,
        statuses: Mapping[str, StatusView],
        asked: str,
        others: Mapping[str, Sequence[SeriesFamily] | None],
        text: TextFormat = PLAIN,
    ) -> tuple[bytes, str]:
        """As `render`, for all gateways; see `merged_series`. `asked`: this one."""
        return text.write(merged(asked, {asked: self.scrape(statuses), **others})), text.content_type

    def _register(self, metric: Metric, model_names: Sequence[str]) -> None:
        collector: Counter | Histogram | Gauge
        if metric.kind is Kind.HISTOGRAM:
            collector = Histogram(
                metric.name, metric.help, metric.labels, registry=self._registry, buckets=metric.buckets
            )
            self._histograms[metric.name] = collector
        elif metric.kind is Kind.GAUGE:
            collector = Gauge(metric.name, metric.help, metric.labels, registry=self._registry)
            self._gauges[metric.name] = collector
        else:
            collector = Counter(metric.name, metric.help, metric.labels, registry=self._registry)
            self._counters[metric.name] = collector
        for model_name in model_names if metric.labels else ():
            known = {"model_name": model_name, "engine": GATEWAY}
            if metric.label_values:
                for value in metric.label_values:
                    collector.labels(**{label: known.get(label, value) for label in metric.labels})
            elif all(label in known for label in metric.labels):
                collector.labels(**{label: known[label] for label in metric.labels})

    def _observe(
        self, name: str, labels: dict[str, str], value: float | None, exemplar: dict[str, str] | None = None
    ) -> None:
        if value is not None:
            histogram = self._histograms[name]
            (histogram.labels(**labels) if labels else histogram).observe(value, exemplar)

    def _count_prompt(self, record: RequestRecord, labels: dict[str, str], exemplar: dict[str, str] | None) -> None:
        if record.facts is None:
            return
        self._observe("vllm:request_queue_time_seconds", labels, record.facts.queue_s, exemplar)
        self._observe("vllm:request_prefill_time_seconds", labels, record.facts.prefill_s, exemplar)
        self._counters["vllm:prompt_tokens_total"].labels(**labels).inc(record.num_prompt_tokens)
        self._counters["vllm:prompt_tokens_cached_total"].labels(**labels).inc(record.num_cached_tokens)
        by_source = self._counters["vllm:prompt_tokens_by_source_total"]
        by_source.labels(**labels, source="local_cache_hit").inc(record.num_cached_tokens)
        by_source.labels(**labels, source="local_compute").inc(record.num_prompt_tokens - record.num_cached_tokens)

    def _observe_completed(
        self, record: RequestRecord, labels: dict[str, str], exemplar: dict[str, str] | None
    ) -> None:
        times, facts = record.times, record.facts
        self._observe("vllm:e2e_request_latency_seconds", labels, times.e2e_s, exemplar)
        self._observe("vllm:request_time_per_output_token_seconds", labels, times.tpot_s, exemplar)
        self._observe("vllm:request_decode_time_seconds", labels, times.decode_s, exemplar)
        if facts is not None and times.decode_s is not None:
            self._observe("vllm:request_inference_time_seconds", labels, facts.prefill_s + times.decode_s, exemplar)
        num_computed = record.num_prompt_tokens - record.num_cached_tokens
        self._observe("vllm:request_prompt_tokens", labels, record.num_prompt_tokens)
        self._observe("vllm:request_generation_tokens", labels, record.num_output_tokens)
        self._observe("vllm:request_max_num_generation_tokens", labels, record.num_longest_output_tokens)
        self._observe("vllm:request_prefill_kv_computed_tokens", labels, num_computed)


def _exemplar(record: RequestRecord) -> dict[str, str] | None:
    """Of latencies: the trace of a request that took so long."""
    return {"trace_id": record.trace_id} if record.trace_id else None


def metrics_markdown() -> str:
    """The page docs/metrics.md."""
    lines = [
        "# Metrics",
        "",
        "Written by `make docs` from `src/relevo/telemetry/metric_table.py`; do not edit.",
        "",
        "`GET /metrics` on the gateway, Prometheus text format. Names that begin with `vllm:` mean what they mean in",
        "vLLM, with its labels and buckets. `engine` is a worker's id, or `gateway` where the gateway measured over",
        "all workers; `relevo:` names say `worker` instead.",
        "With `Accept: application/openmetrics-text` it is OpenMetrics: the same, and latencies have exemplars if",
        "there are [traces](guides/tracing.md): the `trace_id` of a request that a bucket counts.",
        "Counters survive the restart of a worker. Words are those of the [glossary](glossary.md).",
        "",
        "With `--gateways N` a scrape shows all of them, whichever it reaches: what a gateway measured has the label",
        "`gateway` besides, what workers report is there once. A gateway that was restarted counts from zero.",
        "",
        "Utilisation is a rate over a limit, both of one worker: `relevo:worker_product_ops_total` over what its cores",
        "can multiply, which bounds prefill, and `relevo:worker_read_bytes_total` over the memory that they can read,",
        "which bounds decode. The limits are measured in a moment at each of the first five starts on a machine; the",
        "best counts, and is kept in machine-limits.json of the user's cache folder (`$XDG_CACHE_HOME/relevo`).",
    ]
    titles = {
        Origin.REQUESTS: "Measured by the gateway, when a request, handoff or response ends",
        Origin.LEDGER: "Measured by the gateway, when rows of the usage ledger are written",
        Origin.TENANTS: "Measured by the gateway, when a request ends, with `--metrics-by-tenant`",
        Origin.WORKERS: "Reported by the workers",
        Origin.CLUSTER: "Told by the node process of the gateway's box, in a cluster",
        Origin.GATEWAYS: "With several gateways on one port",
    }
    for origin, title in titles.items():
        lines += ["", f"## {title}", "", "| name | kind | labels | meaning |", "|---|---|---|---|"]
        lines += [_row(metric) for metric in TABLE if metric.origin is origin]
    lines += ["", "## Buckets", "", "| histogram | upper bounds |", "|---|---|"]
    lines += [f"| `{metric.name}` | {_bounds(metric.buckets)} |" for metric in TABLE if metric.kind is Kind.HISTOGRAM]
    return "\n".join(lines) + "\n"


def _row(metric: Metric) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels) or "none"
    values = f" `{metric.labels[-1]}`: {', '.join(metric.label_values)}." if metric.label_values else ""
    return f"| `{metric.name}` | {metric.kind} | {labels} | {metric.help}{values} |"


def _bounds(buckets: Sequence[float]) -> str:
    return " ".join(f"{bound:.10g}" for bound in buckets)
