"""Reader of DistServe's fitted coefficients: model -> tensor parallelism -> prefill and decode, in milliseconds.

Source: LLMServe/DistServe, simdistserve/estimators/profile_data, Apache-2.0. Its estimator adds 1 ms to a prefill per
pipeline stage and divides the rest by the number of stages; its workers add 2 ms and 0.1 us per token of context to
every step. Here the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from relevo.core.errors import StartError
from relevo.policy.perf.plausible import check_step_times
from relevo.policy.perf.polynomial_times import Coefficients, PolynomialTimes

_STAGE_S, _OVERHEAD_S, _OVERHEAD_PER_KV_TOKEN_S = 1e-3, 2e-3, 1e-7  # required: as the source has them


def read_distserve(parsed: Mapping[str, Any], model: str, tensor: int, pipeline: int = 1) -> PolynomialTimes:
    """`parsed`: the JSON file. Raises StartError where it has no such model and parallelism, or not in ms."""
    fitted = parsed.get(model, {}).get(str(tensor))
    if fitted is None:
        known = ", ".join(f"{name} x{size}" for name, sizes in parsed.items() for size in sizes)
        raise StartError(f"no coefficients of {model} on {tensor} devices; there are {known}")
    times = PolynomialTimes(
        prefill=_seconds(fitted["prefill"]),
        decode_small=_seconds(fitted["decoding_smallbs"]),
        decode_large=_seconds(fitted["decoding_largebs"]),
        large_from_rows=int(fitted["decoding_large_small_bs_threshold"]),
        pipeline=pipeline,
        stage_s=_STAGE_S,
        overhead_s=_OVERHEAD_S,
        overhead_per_kv_token_s=_OVERHEAD_PER_KV_TOKEN_S,
    )
    check_step_times(replace(times, stage_s=0.0, overhead_s=0.0), f"{model} on {tensor} devices")
    return times


def _seconds(coefficients: list[float]) -> Coefficients:
    base, first, second = (value / 1e3 for value in coefficients)
    return Coefficients(base, first, second)
