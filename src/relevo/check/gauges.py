"""Reads the two gauges that tell whether a server holds anything: running requests and KV cache in use.

Knows the names under which serving stacks export them.
"""

from __future__ import annotations

from collections.abc import Sequence

from relevo.client.prometheus_text import metric_sums

RUNNING = (
    ("vllm:num_requests_running", "vllm:num_requests_waiting"),
    ("sglang:num_running_reqs", "sglang:num_queue_reqs"),
    ("llamacpp:requests_processing", "llamacpp:requests_deferred"),
)
KV_USAGE = (("vllm:kv_cache_usage_perc",), ("sglang:token_usage",), ("llamacpp:kv_cache_usage_ratio",))


def reading(text: str, alternatives: Sequence[Sequence[str]]) -> float | None:
    """The sum of the first set of names that is there; None if none is."""
    values = metric_sums(text)
    for names in alternatives:
        if names[0] in values:
            return sum(values.get(name, 0.0) for name in names)
    return None
