"""Rows of `metric_table` that workers' reports tell, as of the scrape."""

from __future__ import annotations

from relevo.telemetry.metric import Kind, Metric, Origin

MODEL = ("model_name",)
_WORKER = ("model_name", "engine", "role")
_OWN = ("model_name", "worker", "role")
WAITING_REASONS = ("capacity", "deferred")  # vLLM's; nothing here waits for what it calls deferred


def _worker_count(name: str, help_text: str, labels: tuple[str, ...] = _WORKER) -> Metric:
    return Metric(name=name, kind=Kind.COUNTER, origin=Origin.WORKERS, labels=labels, help=help_text)


def worker_gauge(name: str, help_text: str, labels: tuple[str, ...] = _WORKER) -> Metric:
    return Metric(name=name, kind=Kind.GAUGE, origin=Origin.WORKERS, labels=labels, help=help_text)


EXPERT_TOKENS, EXPERT_RANK_TOKENS = "relevo:expert_tokens_total", "relevo:expert_rank_tokens_total"

WORKER_METRICS: tuple[Metric, ...] = (
    worker_gauge("vllm:num_requests_running", "Continuations that decode."),
    worker_gauge(
        "vllm:num_requests_waiting",
        "Requests that wait for room or for their first chunk; engine gateway: held back before any worker.",
    ),
    worker_gauge(
        "vllm:num_requests_waiting_by_reason",
        "vllm:num_requests_waiting under the reason capacity, and 0 under deferred, which is none of ours.",
        labels=(*_WORKER, "reason"),
    ),
    worker_gauge("vllm:kv_cache_usage_perc", "Blocks held or quarantined, as a fraction of all (1 is full)."),
    worker_gauge(
        "vllm:cache_config_info",
        "Always 1; the labels say how the cache is cut.",
        labels=(*_WORKER, "block_size", "num_gpu_blocks", "cache_dtype"),
    ),
    _worker_count("vllm:generation_tokens_total", "Tokens drawn."),
    _worker_count(
        "vllm:prefix_cache_queries_total",
        "Prompt tokens looked up in this worker's prefix cache. Of a split request in the decode worker's, and in the "
        "prefill worker's too where blocks are sent from there. Each request once: vllm:prompt_tokens_cached_total.",
    ),
    _worker_count("vllm:prefix_cache_hits_total", "Of vllm:prefix_cache_queries_total, the tokens found there."),
    _worker_count("vllm:num_preemptions_total", "Continuations that lost their blocks to others and start over."),
    _worker_count("relevo:prefill_tokens_total", "Prompt tokens computed.", _OWN),
    _worker_count("relevo:decode_tokens_total", "Tokens drawn, the first one of every prompt included.", _OWN),
    _worker_count("relevo:steps_total", "Forward passes.", _OWN),
    _worker_count("relevo:worker_busy_seconds_total", "Time spent in steps: its rate is how busy the worker is.", _OWN),
    _worker_count(
        "relevo:worker_product_ops_total",
        "Operations of matrix products and attention, two for a multiply-add; over "
        "relevo:worker_product_limit_ops_per_second its rate is the utilisation of prefill.",
        _OWN,
    ),
    _worker_count(
        "relevo:worker_read_bytes_total",
        "Memory that steps had to read: the weights once each, and the KV of the context; over "
        "relevo:worker_read_limit_bytes_per_second its rate is the utilisation of decode.",
        _OWN,
    ),
    _worker_count(
        EXPERT_TOKENS,
        "Tokens that passed an expert, by its layer's place in the model; of a worker of several pipeline stages in "
        "the layers of the last one. As of when nothing ran, or up to 256 steps ago.",
        (*_OWN, "layer", "expert"),
    ),
    _worker_count(
        EXPERT_RANK_TOKENS,
        "Of relevo:expert_tokens_total, what each rank of a stage has computed; where ranks have whole experts.",
        (*_OWN, "layer", "rank"),
    ),
    worker_gauge(
        "relevo:worker_product_limit_ops_per_second",
        "Operations per second that the worker's cores can do at most, the best that starts here measured; missing "
        "where that is not known.",
        _OWN,
    ),
    worker_gauge(
        "relevo:worker_read_limit_bytes_per_second",
        "Bytes per second of memory that the worker's cores can read at most, the best that starts here measured; "
        "missing where that is not known.",
        _OWN,
    ),
    worker_gauge(
        "relevo:largest_step_tokens",
        "Tokens of the largest step since the worker's start, prompts and decodes together.",
        _OWN,
    ),
    worker_gauge("relevo:step_budget_tokens", "Tokens that a step may have; no step is larger.", _OWN),
    worker_gauge("relevo:prefill_budget_tokens", "Of these, prompt tokens in a step that also decodes.", _OWN),
    worker_gauge(
        "relevo:step_cost_seconds",
        "Measured step time, linear in what a step holds: seconds per step, per token computed and per token of "
        "context read; 0 before the first steps. `per`: step, token, kv_token.",
        (*_OWN, "per"),
    ),
    _worker_count("relevo:kv_transfer_bytes_total", "KV handed to other workers, by the worker that sent it.", _OWN),
    _worker_count("relevo:kv_transfer_seconds_total", "Time in which KV was on its way to other workers.", _OWN),
    _worker_count(
        "relevo:refused_writes_total",
        "KV writes refused because their right had ended: of aborted requests, and of former incarnations of a worker.",
        (*MODEL, "worker"),
    ),
    _worker_count(
        "relevo:refused_connections_total",
        "Connections to a worker's own ports that ended because the peer had no right to be there: kv, where other "
        "workers bring blocks, and wire, where gateways bring requests; see guides/security.md.",
        (*MODEL, "worker", "door", "reason"),
    ),
    _worker_count(
        "relevo:request_faults_total",
        "Requests that ended because Relevo's own code raised while the worker handled them; its log says where.",
        (*MODEL, "worker"),
    ),
    _worker_count("relevo:worker_restarts_total", "Incarnations after the first.", (*MODEL, "worker")),
    worker_gauge("relevo:blocks", "KV blocks by state; the states add up to the pool.", (*MODEL, "worker", "state")),
    worker_gauge("relevo:worker_up", "1 if requests can be sent to the worker, else 0.", _OWN),
)
