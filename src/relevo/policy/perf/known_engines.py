"""Constants of engines on devices, measured.

Fitted to 3,045 runs of AIConfigurator's silicon table (Apache-2.0; InferenceX and NVIDIA, until April 2026) by
`python -m relevo.sim.ladder DATA --constants`. Classes with few runs stay near their engine's and their device's.
Versions are pooled: they differ by as much as engines do, see docs/simulation.md.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from relevo.core.errors import StartError
from relevo.policy.perf.engine_constants import EngineConstants


def _of(
    memory: float,
    expert: float,
    compute: float,
    link: float,
    layer_us: float,
    expert_layer_us: float,
    collective_us: float,
    row_us: float,
    ttft_floor_ms: float,
) -> EngineConstants:
    return EngineConstants(
        memory_efficiency=memory,
        expert_efficiency=expert,
        compute_efficiency=compute,
        link_efficiency=link,
        layer_s=layer_us * 1e-6,
        expert_layer_s=expert_layer_us * 1e-6,
        collective_s=collective_us * 1e-6,
        row_s=row_us * 1e-6,
        ttft_floor_s=ttft_floor_ms * 1e-3,
    )


KNOWN: Mapping[tuple[str, str], EngineConstants] = {
    ("sglang", "b200"): _of(0.778, 0.815, 0.586, 0.164, 52.1, 25.6, 5.4, 16.3, 187),
    ("sglang", "b300"): _of(0.825, 0.843, 0.598, 0.171, 50.3, 26.4, 5.4, 16.6, 187),
    ("sglang", "gb200"): _of(0.824, 0.862, 0.610, 0.181, 47.0, 25.9, 5.3, 16.4, 187),
    ("sglang", "gb300"): _of(0.849, 0.822, 0.625, 0.183, 47.8, 26.3, 5.3, 16.2, 187),
    ("sglang", "h100"): _of(0.895, 0.862, 0.642, 0.187, 50.9, 26.9, 5.4, 16.3, 187),
    ("sglang", "h200"): _of(0.812, 0.695, 0.576, 0.171, 58.7, 30.1, 5.5, 17.4, 187),
    ("trtllm", "b200"): _of(0.803, 0.975, 0.593, 0.179, 42.9, 23.0, 5.2, 15.3, 106),
    ("trtllm", "gb200"): _of(0.795, 0.943, 0.595, 0.189, 44.4, 25.1, 5.3, 15.7, 106),
    ("trtllm", "gb300"): _of(0.868, 0.890, 0.614, 0.189, 45.1, 25.7, 5.3, 15.6, 106),
    ("trtllm", "h100"): _of(0.876, 0.918, 0.592, 0.185, 51.2, 26.6, 5.4, 15.9, 106),
    ("trtllm", "h200"): _of(0.934, 0.699, 0.610, 0.187, 57.8, 31.6, 5.5, 16.5, 106),
    ("vllm", "b200"): _of(0.739, 0.889, 0.612, 0.171, 50.7, 24.8, 5.5, 15.6, 49),
    ("vllm", "b300"): _of(0.778, 0.882, 0.632, 0.180, 49.6, 26.1, 5.5, 15.8, 49),
    ("vllm", "gb200"): _of(0.784, 0.882, 0.638, 0.187, 47.3, 25.6, 5.4, 15.5, 49),
    ("vllm", "h100"): _of(0.826, 0.870, 0.652, 0.190, 53.7, 26.7, 5.5, 15.4, 49),
    ("vllm", "h200"): _of(0.838, 0.607, 0.655, 0.187, 59.4, 30.2, 5.6, 16.0, 49),
}

# Oldest and newest release of each engine among those runs
MEASURED_VERSIONS: Mapping[str, tuple[str, str]] = {
    "sglang": ("0.5.1", "0.5.10"),
    "trtllm": ("0.5.1", "1.3.0"),
    "vllm": ("0.11.2", "0.19.0"),
}


def is_measured_version(engine: str, version: str) -> bool:
    """Whether it lies between releases that were measured. Raises ValueError for what is no version."""
    oldest, newest = (_numbers(each) for each in MEASURED_VERSIONS[engine])
    return oldest <= _numbers(version) <= newest


def _numbers(version: str) -> tuple[int, ...]:
    """Of a release, up to three: what follows them (rc1, .post2) is of the same release."""
    found = re.match(r"v?(\d+)\.(\d+)(?:\.(\d+))?(?![\d])", version)
    if found is None:
        raise ValueError(f"{version!r} is no version of an engine; write it as 0.19.0")
    return tuple(int(each or 0) for each in found.groups())


def known_engine(engine: str, device_name: str) -> EngineConstants:
    """Raises StartError for a pair that was not measured: name another, or take `DEFAULT_CONSTANTS` knowingly."""
    found = KNOWN.get((engine, device_name))
    if found is None:
        known = ", ".join(f"{engine} on {device}" for engine, device in KNOWN)
        raise StartError(f"no measured constants of {engine} on {device_name}; there are {known}")
    return found
