"""What vLLM's public dashboards ask of a server: names, labels and forms of their queries.

Selectors: one dashboard filters by `model_name` alone, the others by job, model, instance and engine. `NOT_EXPORTED`:
names that some of their panels ask for and Relevo has not, as docs/guides/dashboards.md says.
"""

from __future__ import annotations

from collections.abc import Iterator

QUANTILES = (0.5, 0.9, 0.95, 0.99)
BY_MODEL = 'model_name="fake"'
BY_INSTANCE = 'job=~"relevo",model_name=~"fake",instance=~".*"'
BY_ENGINE = BY_INSTANCE + ',engine=~".*"'
BY_JOB = 'job=~"relevo",instance=~".*"'

LATENCIES = (
    "vllm:time_to_first_token_seconds",
    "vllm:inter_token_latency_seconds",
    "vllm:request_time_per_output_token_seconds",
    "vllm:e2e_request_latency_seconds",
    "vllm:request_queue_time_seconds",
    "vllm:request_prefill_time_seconds",
    "vllm:request_decode_time_seconds",
    "vllm:request_inference_time_seconds",
)
LENGTHS = (
    "vllm:request_prompt_tokens",
    "vllm:request_generation_tokens",
    "vllm:request_params_max_tokens",
    "vllm:request_params_n",
    "vllm:request_prefill_kv_computed_tokens",
    "vllm:request_max_num_generation_tokens",
)
COUNTERS = (
    "vllm:prompt_tokens_total",
    "vllm:prompt_tokens_cached_total",
    "vllm:generation_tokens_total",
    "vllm:num_preemptions_total",
    "vllm:prefix_cache_queries_total",
    "vllm:prefix_cache_hits_total",
    "vllm:request_success_total",
    "vllm:prompt_tokens_by_source_total",
)
GAUGES = (
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:kv_cache_usage_perc",
    "vllm:cache_config_info",
)
NOT_EXPORTED = (
    "vllm:prompt_tokens_cached_by_source_total",
    "vllm:external_prefix_cache_queries_total",
    "vllm:iteration_tokens_total",
    "vllm:gpu_cache_usage_perc",
    "vllm:time_per_output_token_seconds",
)


def queries(interval: str = "15s") -> Iterator[str]:
    for name in (*LATENCIES, *LENGTHS):
        for labels in (BY_MODEL, BY_INSTANCE):
            for q in QUANTILES:
                yield f"histogram_quantile({q}, sum by(le) (rate({name}_bucket{{{labels}}}[{interval}])))"
            yield f"rate({name}_sum{{{labels}}}[{interval}]) / rate({name}_count{{{labels}}}[{interval}])"
            yield f"sum by(le) (increase({name}_bucket{{{labels}}}[{interval}]))"
        yield f"rate({name}_sum{{{BY_MODEL}}}[{interval}])"
        yield f"sum(increase({name}_sum[5m])) / sum(increase({name}_count[5m]))"
    for name in COUNTERS:
        yield f"rate({name}{{{BY_MODEL}}}[{interval}])"
        yield f"sum by (model_name) (rate({name}{{{BY_INSTANCE}}}[{interval}]))"
        yield f"sum by (instance, engine) (rate({name}{{{BY_ENGINE}}}[{interval}]))"
    for name in GAUGES:
        yield f"{name}{{{BY_MODEL}}}"
        yield f"max by (instance, engine) ({name}{{{BY_ENGINE}}})"
        yield f"avg({name}{{{BY_INSTANCE}}})"
    yield from _single(interval)


def _single(interval: str) -> Iterator[str]:
    by_reason = f"sum by (finished_reason) (rate(vllm:request_success_total{{{BY_INSTANCE}}}[{interval}]))"
    yield f"sum by(finished_reason) (increase(vllm:request_success_total{{{BY_MODEL}}}[{interval}]))"
    yield (
        f"{by_reason} / ignoring (finished_reason) group_left () "
        f"(sum(rate(vllm:request_success_total{{{BY_INSTANCE}}}[{interval}])) > 0)"
    )
    for name in ("hits", "queries"):
        yield f"sum by (engine) (rate(vllm:prefix_cache_{name}_total{{{BY_ENGINE}}}[{interval}]))"
    yield (
        f"sum(rate(vllm:prefix_cache_hits_total{{{BY_ENGINE}}}[{interval}])) / "
        f"(sum(rate(vllm:prefix_cache_queries_total{{{BY_ENGINE}}}[{interval}])) > 0)"
    )
    for reason in ("capacity", "deferred"):
        yield f'sum(vllm:num_requests_waiting_by_reason{{{BY_ENGINE},reason="{reason}"}})'
    for source in ("local_compute", "local_cache_hit", "external_kv_transfer"):
        yield f'sum(rate(vllm:prompt_tokens_by_source_total{{{BY_ENGINE},source="{source}"}}[{interval}]))'
    for label in ("status", "handler"):
        yield f"sum by ({label}) (rate(http_requests_total{{{BY_JOB}}}[{interval}]))"
    yield (
        f'(sum(rate(http_requests_total{{{BY_JOB},status="5xx"}}[{interval}])) or vector(0)) / '
        f"(sum(rate(http_requests_total{{{BY_JOB}}}[{interval}])) > 0)"
    )
    yield 'count(up{job=~"relevo"} == 0) or vector(0)'
    yield f"count(vllm:num_requests_running{{{BY_INSTANCE}}})"
    yield f"round(sum by (model_name) (increase(vllm:num_preemptions_total{{{BY_INSTANCE}}}[5m])))"
    yield f"max by (model_name) (max_over_time(vllm:kv_cache_usage_perc{{{BY_INSTANCE}}}[5m]))"
