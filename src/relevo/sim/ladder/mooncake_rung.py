"""Rung 5: Mooncake's traces: what a cache of a given size hits, and how many of 16 nodes should compute prompts.

Published (FAST'25): at 3M tokens a cache reaches 41 % (conversation) and 48 or 46 % (synthetic) of what an unbounded
one hits; with 16 nodes of 8 A800, Llama3-70B shape, TTFT up to 10 s and 100 ms between tokens, the synthetic trace is
served best near 8 prefill and 8 decode nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from relevo.policy.perf.devices import device
from relevo.policy.perf.memory_plan import MemoryLimits, memory_plan
from relevo.policy.perf.parallelism import Parallelism
from relevo.policy.perf.roofline import RooflineModel
from relevo.policy.perf.step_work import DeviceWork
from relevo.sim.ladder.clusters import Cluster, Group, simulate
from relevo.sim.ladder.errors import RungReport, ValueTable
from relevo.sim.results import RequestOutcome
from relevo.sim.reuse import reuse_curve
from relevo.sim.tables.model_files import config_path, read_model_shape
from relevo.workload.requests import Workload
from relevo.workload.timing import Timing, time_workload
from relevo.workload.traces.files import ReadOptions, read_trace_file

TRACES, CONFIGS = Path("traces"), Path("model_configs")
_MODEL, _DEVICE, _NODE = "meta-llama/Meta-Llama-3.1-70B", "a800", Parallelism(tensor=8)
_CAPACITIES = (1_000_000, 3_000_000, 10_000_000, 30_000_000, 50_000_000)  # tokens
_PUBLISHED_AT_3M = {"conversation": "41 %", "synthetic": "46 or 48 %"}
_BLOCK_SIZE = 512  # required: the traces' hash ids
_NUM_NODES, _NUM_PREFILL = 16, (6, 8, 10, 12, 14)
_NUM_REQUESTS, _SPEEDS = 300, (1.5, 3.0)  # of the synthetic trace; recorded times pass so much faster
_TTFT_S, _TBT_S = 10.0, 0.1
_LONGEST_SHARE = 0.1  # of a request's gaps, whose mean is its TBT: as the paper has it


def mooncake_rung(folder: Path) -> RungReport:
    traces = {name: read_trace_file(folder / TRACES / f"mooncake_{name}_trace.jsonl") for name in _PUBLISHED_AT_3M}
    return RungReport(
        rung=5,
        title="Mooncake's cache curve and its number of prefill nodes",
        facts={name: f"{len(trace.requests):,} requests" for name, trace in traces.items()},
        tables=[_reuse_table(traces), sweep_table(folder)],
    )


def _reuse_table(traces: dict[str, Workload]) -> ValueTable:
    rows = []
    for name, trace in traces.items():
        most, bounded = reuse_curve(trace.requests, _BLOCK_SIZE, _CAPACITIES)
        shares = [f"{share:.1%}" for _, share in bounded]
        rows.append([name, f"{most.hit_fraction:.2%}", *shares, _PUBLISHED_AT_3M[name]])
    sizes = [f"{capacity // 1_000_000}M" for capacity in _CAPACITIES]
    return ValueTable(
        title="blocks hit by an unbounded cache, and share of them by one of so many tokens",
        goal="the published share at 3M",
        columns=("trace", "unbounded", *sizes, "published at 3M"),
        rows=rows,
    )


def sweep_table(folder: Path, num_requests: int = _NUM_REQUESTS, speeds: Sequence[float] = _SPEEDS) -> ValueTable:
    """Share of requests that meet both limits, by the number of prefill nodes."""
    options = ReadOptions(limit=num_requests)
    trace = read_trace_file(folder / TRACES / "mooncake_synthetic_trace.jsonl", options)
    shape = read_model_shape(config_path(folder / CONFIGS, _MODEL))
    work = DeviceWork(shape, device(_DEVICE), _NODE)
    plan = memory_plan(shape, work.device, _NODE, MemoryLimits(block_size=_BLOCK_SIZE, utilization=0.9))
    times = RooflineModel(work)
    rows = []
    for num_prefill in _NUM_PREFILL:
        groups = [
            Group(role=role, num_workers=number, times=times, num_pool_tokens=plan.num_pool_tokens)
            for role, number in (("prefill", num_prefill), ("decode", _NUM_NODES - num_prefill))
        ]
        cluster = Cluster(
            groups=groups,
            kv_bytes_per_token=round(shape.kv_bytes_per_token()),
            link_bytes_per_s=work.device.network_bytes_per_s * _NODE.num_devices,
            has_prefix_cache=True,
            block_size=_BLOCK_SIZE,
        )
        met = [_effective(cluster, time_workload(trace, Timing(speed=speed))) for speed in speeds]
        rows.append([f"{num_prefill}P {_NUM_NODES - num_prefill}D", *(f"{share:.1%}" for share in met)])
    return ValueTable(
        title=f"synthetic, first {num_requests} requests: share with TTFT up to 10 s and TBT up to 100 ms",
        goal="best near 8P 8D",
        columns=("nodes", *(f"{speed:g} x recorded rate" for speed in speeds)),
        rows=rows,
    )


def _effective(cluster: Cluster, workload: Workload) -> float:
    results = simulate(cluster, workload.requests).requests
    num_met = 0
    for each in results:
        times = each.times
        gaps = sorted(times.itl_s, reverse=True)
        longest = gaps[: max(1, int(_LONGEST_SHARE * len(gaps)))]
        has_ended = each.outcome is RequestOutcome.FINISHED and (times.ttft_s or 0.0) <= _TTFT_S
        num_met += has_ended and (not longest or sum(longest) / len(longest) <= _TBT_S)
    return num_met / len(results)
