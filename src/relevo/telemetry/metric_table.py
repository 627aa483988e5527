"""Every metric that Relevo exports: one table, which registration and docs/metrics.md both read.

Owns names, kinds, labels, help texts and buckets. Does not know where values come from. Names that begin with `vllm:`
have vLLM's meaning, labels and buckets, so that existing dashboards and autoscalers work; the others are our own.
"""

from __future__ import annotations

from relevo.core.request import FinishReason
from relevo.policy.admission.words import LIMITS
from relevo.policy.http.connections import Refusal, Wait
from relevo.telemetry.cluster_metrics import CLUSTER_METRICS
from relevo.telemetry.metric import Kind, Metric, Origin
from relevo.telemetry.planner_metrics import PLANNER_METRICS
from relevo.telemetry.worker_metrics import MODEL, WORKER_METRICS, worker_gauge


def one_two_five(largest: int) -> tuple[float, ...]:
    """1, 2, 5, 10, 20, 50 ... up to `largest`."""
    bounds = (digit * 10**exponent for exponent in range(len(str(largest))) for digit in (1, 2, 5))
    return tuple(float(bound) for bound in bounds if bound <= largest)


# vLLM's buckets; token counts go up to a fixed length so that they do not depend on the model
TTFT_BUCKETS_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
    *(160.0, 640.0, 2560.0),
)
ITL_BUCKETS_S = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
LATENCY_BUCKETS_S = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0),
    *(1920.0, 7680.0),
)
TOKEN_BUCKETS = one_two_five(1_000_000)
N_BUCKETS = (1.0, 2.0, 5.0, 10.0, 20.0)
# arbitrary: from a short prompt on one box to a long one over a slow link
HANDOFF_BUCKETS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
TRANSFER_BUCKETS_BYTES = tuple(float(1 << exponent) for exponent in range(16, 36, 2))

# a commit without fsync takes less than a millisecond, one that waits for a busy disk or another process much more
COMMIT_BUCKETS_S = (0.0001, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
# prometheus-fastapi-instrumentator's are among them; an answer lasts as long as its stream
HTTP_BUCKETS_S = (0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
CLASSES = ("interactive", "batch")
OUTCOMES = ("finished", "aborted", "failed")

MISSED_WHEN = ("waiting", "running")
HANDOFF_OUTCOMES = ("completed", "local", "failed", "aborted", "replayed")
ENGINE_HANDOFFS = ("completed", "late", "failed", "half_failed", "no_ticket", "given_back")
REJECTIONS = (*LIMITS, "ledger", "budget", "tokens_per_minute")
PROMPT_SOURCES = ("local_compute", "local_cache_hit", "external_kv_transfer")  # vLLM's; the last one stays 0
BLOCK_STATES = ("free", "reusable", "held", "quarantined")

_REQUEST = ("model_name", "engine")
CONNECTION_REFUSALS = tuple(Refusal)
CONNECTION_WAITS = (Wait.HEAD, Wait.BODY, Wait.READER)


def _of_requests(name: str, buckets: tuple[float, ...], help_text: str, labels: tuple[str, ...] = _REQUEST) -> Metric:
    return Metric(
        name=name, kind=Kind.HISTOGRAM, origin=Origin.REQUESTS, labels=labels, help=help_text, buckets=buckets
    )


def _count(name: str, help_text: str, labels: tuple[str, ...] = _REQUEST, label_values: tuple[str, ...] = ()) -> Metric:
    return Metric(
        name=name,
        kind=Kind.COUNTER,
        origin=Origin.REQUESTS,
        labels=labels,
        help=help_text,
        label_values=label_values,
    )


def _tenant_count(name: str, help_text: str, outcomes: tuple[str, ...] = ()) -> Metric:
    labels = (*MODEL, "tenant", *(("outcome",) if outcomes else ()))
    return Metric(
        name=name, kind=Kind.COUNTER, origin=Origin.TENANTS, labels=labels, help=help_text, label_values=outcomes
    )


TABLE: tuple[Metric, ...] = (
    _of_requests("vllm:time_to_first_token_seconds", TTFT_BUCKETS_S, "Accepted to first output token written."),
    _of_requests("vllm:inter_token_latency_seconds", ITL_BUCKETS_S, "Gaps between consecutive output tokens."),
    _of_requests(
        "vllm:request_time_per_output_token_seconds",
        ITL_BUCKETS_S,
        "(E2E - TTFT) / (output tokens - 1) of completed requests.",
    ),
    _of_requests("vllm:e2e_request_latency_seconds", LATENCY_BUCKETS_S, "Accepted to end, of completed requests."),
    _of_requests(
        "vllm:request_queue_time_seconds",
        LATENCY_BUCKETS_S,
        "Wait on the worker that computed the prompt, until its first chunk was scheduled.",
    ),
    _of_requests("vllm:request_prefill_time_seconds", LATENCY_BUCKETS_S, "First chunk scheduled to first token drawn."),
    _of_requests(
        "vllm:request_decode_time_seconds",
        LATENCY_BUCKETS_S,
        "First to last output token of completed requests, the handoff included.",
    ),
    _of_requests(
        "vllm:request_inference_time_seconds",
        LATENCY_BUCKETS_S,
        "Prefill time plus decode time of completed requests.",
    ),
    _of_requests("vllm:request_prompt_tokens", TOKEN_BUCKETS, "Prompt tokens of completed requests."),
    _of_requests(
        "vllm:request_generation_tokens",
        TOKEN_BUCKETS,
        "Output tokens of completed requests, summed over their continuations.",
    ),
    _of_requests(
        "vllm:request_max_num_generation_tokens",
        TOKEN_BUCKETS,
        "Output tokens of the longest continuation of completed requests.",
    ),
    _of_requests(
        "vllm:request_prefill_kv_computed_tokens",
        TOKEN_BUCKETS,
        "Prompt tokens of completed requests that had to be computed: those not found in a cache.",
    ),
    _of_requests("vllm:request_params_n", N_BUCKETS, "Parameter n of ended requests."),
    _of_requests("vllm:request_params_max_tokens", TOKEN_BUCKETS, "Parameter max_tokens of ended requests."),
    _count(
        "vllm:prompt_tokens_total",
        "Prompt tokens of ended requests whose prompt was processed, cached ones included, each request once.",
    ),
    _count("vllm:prompt_tokens_cached_total", "Of vllm:prompt_tokens_total, those found in a cache."),
    _count(
        "vllm:prompt_tokens_by_source_total",
        "vllm:prompt_tokens_total by where they came from; KV that workers hand over is never a source.",
        labels=(*_REQUEST, "source"),
        label_values=PROMPT_SOURCES,
    ),
    _count(
        "vllm:request_success_total",
        "Ended requests by finish reason of their first continuation.",
        labels=(*_REQUEST, "finished_reason"),
        label_values=tuple(FinishReason),
    ),
    _count(
        "vllm:admission_rejections_total",
        "Requests refused at the door or turned away while they waited, by the limit; see guides/overload.md.",
        labels=("model_name", "reason"),
        label_values=REJECTIONS,
    ),
    _count(
        "relevo:deadline_misses_total",
        "Requests that ended because the time their client allowed was over.",
        labels=("model_name", "when"),
        label_values=MISSED_WHEN,
    ),
    _count(
        "relevo:gateway_request_faults_total",
        "Requests that ended because Relevo's own code raised while the gateway handled them; its log says where.",
        labels=MODEL,
    ),
    Metric(
        name="relevo:line_wait_seconds",
        kind=Kind.HISTOGRAM,
        origin=Origin.REQUESTS,
        labels=(*MODEL, "class"),
        help="Wait in the gateway's line of requests that were then sent to a worker.",
        buckets=TTFT_BUCKETS_S,
        label_values=CLASSES,
    ),
    _of_requests(
        "http_request_duration_seconds",
        HTTP_BUCKETS_S,
        "HTTP requests: head read to answer written, streams to their end; handler is the route's path.",
        labels=("handler", "method"),
    ),
    _count("http_requests_total", "HTTP responses; status is the class of the code.", ("handler", "method", "status")),
    Metric(
        name="relevo:http_connections",
        kind=Kind.GAUGE,
        origin=Origin.REQUESTS,
        labels=(),
        help="Open connections of clients, TLS handshakes included.",
    ),
    _count(
        "relevo:http_connections_refused_total",
        "Connections refused, or closed while idle to make room for another (full).",
        labels=("reason",),
        label_values=CONNECTION_REFUSALS,
    ),
    _count(
        "relevo:http_connections_timed_out_total",
        "Connections ended because the client kept the server waiting, by what it owed.",
        labels=("waited_for",),
        label_values=CONNECTION_WAITS,
    ),
    _count(
        "relevo:handoffs_total",
        "Requests that were to change worker, by what came of it.",
        labels=(*MODEL, "outcome"),
        label_values=HANDOFF_OUTCOMES,
    ),
    _count(
        "relevo:engine_handoffs_total",
        "Handoffs between engines that are not ours, by what came of them: completed; or the prompt was computed "
        "where it is decoded after all, since the KV would have come late (late), its transfer failed (failed), the "
        "other half failed (half_failed) or no KV was kept (no_ticket); or the KV was given back unused (given_back).",
        labels=(*MODEL, "outcome"),
        label_values=ENGINE_HANDOFFS,
    ),
    Metric(
        name="relevo:engine_pairs",
        kind=Kind.GAUGE,
        origin=Origin.REQUESTS,
        labels=(*MODEL, "state"),
        help="Engines with a role that this gateway reaches: in a pair that hands over (paired), or not (unpaired); "
        "the log says why.",
        label_values=("paired", "unpaired"),
    ),
    _of_requests(
        "relevo:handoff_seconds",
        HANDOFF_BUCKETS_S,
        "Completed handoffs: prompt computed to decode started on the other worker.",
        labels=MODEL,
    ),
    _of_requests(
        "relevo:handoff_transfer_seconds",
        HANDOFF_BUCKETS_S,
        "Completed handoffs: time in which KV was on its way.",
        labels=MODEL,
    ),
    _of_requests(
        "relevo:handoff_transfer_bytes", TRANSFER_BUCKETS_BYTES, "Completed handoffs: KV handed over.", labels=MODEL
    ),
    Metric(
        name="relevo:log_lines_not_written_total",
        kind=Kind.COUNTER,
        origin=Origin.REQUESTS,
        labels=("reason",),
        help="Log lines of the gateway that were held back because one place wrote many (repeated), or dropped because "
        "standard error was not read (unread).",
        label_values=("repeated", "unread"),
    ),
    Metric(
        name="relevo:traces_dropped_total",
        kind=Kind.COUNTER,
        origin=Origin.REQUESTS,
        labels=("reason",),
        help="Requests whose trace was to be recorded and is lost: too many waited (queue_full), or the collector did "
        "not take it in time (not_taken). 0 where no traces are made.",
        label_values=("queue_full", "not_taken"),
    ),
    *PLANNER_METRICS,
    *(
        Metric(name=name, kind=Kind(kind), origin=Origin.CLUSTER, labels=labels, help=text, label_values=values)
        for name, kind, labels, text, values in CLUSTER_METRICS
    ),
    Metric(
        name="relevo:ledger_rows_total",
        kind=Kind.COUNTER,
        origin=Origin.LEDGER,
        labels=("outcome",),
        help="Rows kept in the usage ledger, one per admitted request, by how the request ended.",
        label_values=OUTCOMES,
    ),
    Metric(
        name="relevo:ledger_write_failures_total",
        kind=Kind.COUNTER,
        origin=Origin.LEDGER,
        labels=(),
        help="Transactions that failed and were repeated.",
    ),
    Metric(
        name="relevo:ledger_commit_seconds",
        kind=Kind.HISTOGRAM,
        origin=Origin.LEDGER,
        labels=(),
        help="Duration of a transaction, one or many rows.",
        buckets=COMMIT_BUCKETS_S,
    ),
    Metric(
        name="relevo:ledger_journal_rows_total",
        kind=Kind.COUNTER,
        origin=Origin.LEDGER,
        labels=("event",),
        help="Rows that the database did not take in time: written to the journal, replayed from one at the start, or "
        "corrupt there and kept aside.",
        label_values=("written", "replayed", "corrupt"),
    ),
    Metric(
        name="relevo:ledger_pending_rows",
        kind=Kind.GAUGE,
        origin=Origin.LEDGER,
        labels=(),
        help="Rows that are not known to be kept yet.",
    ),
    Metric(
        name="relevo:ledger_up",
        kind=Kind.GAUGE,
        origin=Origin.LEDGER,
        labels=(),
        help="0 while the last transaction failed; then no request is taken.",
    ),
    Metric(
        name="relevo:keys_up",
        kind=Kind.GAUGE,
        origin=Origin.LEDGER,
        labels=(),
        help="0 while API keys cannot be read, also because the database's file was removed or replaced; then no "
        "request is taken.",
    ),
    _tenant_count("relevo:tenant_requests_total", "Ended requests by tenant and outcome.", OUTCOMES),
    _tenant_count("relevo:tenant_prompt_tokens_total", "Prompt tokens of ended requests, cached ones included."),
    _tenant_count("relevo:tenant_cached_tokens_total", "Of these, those found in a cache."),
    _tenant_count("relevo:tenant_output_tokens_total", "Output tokens of ended requests."),
    *WORKER_METRICS,
    worker_gauge(
        "relevo:requests_in_line", "Requests that the gateway holds back until it is their turn.", (*MODEL, "class")
    ),
    worker_gauge("relevo:oldest_wait_seconds", "How long the first of them to come has waited.", (*MODEL, "class")),
    worker_gauge(
        "relevo:requests_in_flight",
        "Requests of which the gateway or a worker may still hold something.",
        MODEL,
    ),
    Metric(
        name="relevo:gateway_up",
        kind=Kind.GAUGE,
        origin=Origin.GATEWAYS,
        labels=("gateway",),
        help="1 if the gateway answered the one that was scraped, else 0; then its series are missing.",
    ),
)
BY_NAME = {metric.name: metric for metric in TABLE}
