"""Reads the two gauges that tell whether a server holds anything: running requests and KV cache in use.

Knows the names under which serving stacks export them. Source: Prometheus exposition formats, text version 0.0.4.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

RUNNING = (
    ("vllm:num_requests_running", "vllm:num_requests_waiting"),
    ("sglang:num_running_reqs", "sglang:num_queue_reqs"),
    ("llamacpp:requests_processing", "llamacpp:requests_deferred"),
)
KV_USAGE = (("vllm:kv_cache_usage_perc",), ("sglang:token_usage",), ("llamacpp:kv_cache_usage_ratio",))

_SAMPLE = re.compile(r"^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{.*\})?\s+(\S+)", re.MULTILINE)


def sums(text: str) -> dict[str, float]:
    """Sample name -> sum over its label sets."""
    found: dict[str, float] = {}
    for name, value in _SAMPLE.findall(text):
        try:
            found[name] = found.get(name, 0.0) + float(value)
        except ValueError:
            continue
    return found


def reading(text: str, alternatives: Sequence[Sequence[str]]) -> float | None:
    """The sum of the first set of names that is there; None if none is."""
    values = sums(text)
    for names in alternatives:
        if names[0] in values:
            return sum(values.get(name, 0.0) for name in names)
    return None
