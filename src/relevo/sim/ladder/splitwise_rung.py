"""Rung 4: Splitwise's clusters at equal power, with its measured step times and Azure's lengths.

Published (ISCA'24, scripts of splitwise-sim): the highest rate at which nine limits hold, of TTFT, time between tokens
and E2E as multiples of an idle DGX-A100, at the 50th, 90th and 99th percentile. 70 DGX-A100 or 40 DGX-H100 take the
same power. Split A100 (45 + 25) against mixed A100: 2.15 times; H100 prompts and A100 tokens against mixed H100: 1.18.

A fifth of each cluster and of the load is simulated; times are Llama2-70B's on eight GPUs. Routing is ours, not theirs.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from relevo.policy.perf.measured_times import MeasuredTimes
from relevo.policy.perf.step_time import StepShape, decode_shape
from relevo.sim.ladder.clusters import Cluster, Group, finished, simulate
from relevo.sim.ladder.errors import RungReport, ValueTable
from relevo.sim.results import RequestResult
from relevo.sim.tables.splitwise import SplitwiseKey, read_splitwise
from relevo.workload.requests import WorkloadRequest
from relevo.workload.traces.files import ReadOptions, read_trace_file
from relevo.workload.traces.formats import TraceFormat

TABLE, LENGTHS = Path("profiles/splitwise/perf_model.csv"), Path("traces/AzureLLMInferenceTrace_conv_2023.csv")
_MODEL, _TENSOR = "llama2-70b", 8
_KV_BYTES, _POOL_TOKENS = 327_680, 1_400_000  # per token; 8 x 80 GB less weights
_LINK_BYTES_PER_S = 25e9  # 200 Gb/s InfiniBand
_STEP_TOKENS = 2048  # required: as splitwise-sim batches prompts
_MAX_ROWS = 512
_SCALE = 5  # of machines and load
_NUM_REQUESTS = 800
_QUANTILES = (0.50, 0.90, 0.99)
_LIMITS = {"TTFT": (2.0, 3.0, 6.0), "TBT": (1.25, 1.5, 5.0), "E2E": (1.25, 1.5, 5.0)}
_RATE_STEP, _MOST_RATE = 1.0, 64.0  # of the scaled cluster, requests a second


@dataclass(frozen=True, slots=True)
class _Machines:
    name: str
    mixed: Mapping[str, int]  # device -> DGX boxes of the whole cluster
    prompt: Mapping[str, int]
    token: Mapping[str, int]


_CLUSTERS = (
    _Machines("mixed A100", {"a100-80gb": 70}, {}, {}),
    _Machines("split A100, 45 + 25", {}, {"a100-80gb": 45}, {"a100-80gb": 25}),
    _Machines("mixed H100", {"h100-80gb": 40}, {}, {}),
    _Machines("H100 prompts, A100 tokens, 25 + 26", {}, {"h100-80gb": 25}, {"a100-80gb": 26}),
)
_PUBLISHED = {"split A100, 45 + 25": ("mixed A100", 2.15), "H100 prompts, A100 tokens, 25 + 26": ("mixed H100", 1.18)}


def splitwise_rung(folder: Path) -> RungReport:
    ways = {"as measured": False, "as splitwise-sim looks them up": True}
    rows = read_trace_file(folder / LENGTHS, ReadOptions(format=TraceFormat.AZURE)).requests
    lengths = [(row.num_prompt_tokens, row.num_output_tokens) for row in rows]
    return RungReport(
        rung=4,
        title="Splitwise's clusters at equal power, Llama2-70B, Azure conversations",
        facts={"requests a point": _NUM_REQUESTS, "scale": f"1/{_SCALE}", "step of rates": _RATE_STEP * _SCALE},
        tables=[_table(folder, lengths, way, as_theirs) for way, as_theirs in ways.items()],
    )


def _table(folder: Path, lengths: Sequence[tuple[int, int]], way: str, as_splitwise_sim: bool) -> ValueTable:
    with (folder / TABLE).open(encoding="utf-8", newline="") as lines:
        times = read_splitwise(lines, as_splitwise_sim=as_splitwise_sim)
    idle = times[SplitwiseKey(_MODEL, "a100-80gb", _TENSOR)]
    best = {each.name: _best_rate(_groups(each, times), lengths, idle) for each in _CLUSTERS}
    table_rows = []
    for each in _CLUSTERS:
        against, published = _PUBLISHED.get(each.name, ("", 0.0))
        ratio = f"{best[each.name] / best[against]:.2f}" if against else "-"
        rate = f"{best[each.name] * _SCALE:.0f}"
        table_rows.append([each.name, rate, ratio, f"{published:.2f}" if against else "-"])
    return ValueTable(
        title=f"highest rate at which all nine limits hold, token times {way}",
        goal="the published ratios",
        columns=("cluster", "requests a second", "times mixed", "published"),
        rows=table_rows,
    )


def _groups(machines: _Machines, times: Mapping[SplitwiseKey, MeasuredTimes]) -> list[Group]:
    roles = {"unified": machines.mixed, "prefill": machines.prompt, "decode": machines.token}
    return [
        Group(
            role=role,
            num_workers=max(1, round(number / _SCALE)),
            times=times[SplitwiseKey(_MODEL, device, _TENSOR)],
            num_pool_tokens=_POOL_TOKENS,
            max_step_tokens=_STEP_TOKENS,
            max_rows=_MAX_ROWS,
        )
        for role, devices in roles.items()
        for device, number in devices.items()
    ]


def _best_rate(groups: Sequence[Group], lengths: Sequence[tuple[int, int]], idle: MeasuredTimes) -> float:
    """By bisection over multiples of the step."""
    low, high = 0, round(_MOST_RATE / _RATE_STEP)
    while high - low > 1:
        middle = (low + high) // 2
        if _holds(groups, lengths, middle * _RATE_STEP, idle):
            low = middle
        else:
            high = middle
    return low * _RATE_STEP


def _holds(groups: Sequence[Group], lengths: Sequence[tuple[int, int]], rate: float, idle: MeasuredTimes) -> bool:
    cluster = Cluster(groups=groups, kv_bytes_per_token=_KV_BYTES, link_bytes_per_s=_LINK_BYTES_PER_S)
    rows = _arrivals(lengths, rate)
    slowdowns: dict[str, list[float]] = {metric: [] for metric in _LIMITS}
    for row, result in zip(rows, finished(simulate(cluster, rows)), strict=True):
        for metric, value in _slowdowns(row, result, idle).items():
            slowdowns[metric].append(value)
    return all(
        sorted(values)[min(len(values) - 1, int(share * len(values)))] <= limit
        for metric, values in slowdowns.items()
        for share, limit in zip(_QUANTILES, _LIMITS[metric], strict=True)
    )


def _slowdowns(row: WorkloadRequest, result: RequestResult, idle: MeasuredTimes) -> dict[str, float]:
    """As multiples of what the request takes alone on an A100 machine."""
    prompt_s = idle.step_s(StepShape().with_chunk(row.num_prompt_tokens, 0))
    token_s = idle.step_s(decode_shape(1, row.num_prompt_tokens + row.num_output_tokens / 2))
    times = result.times
    found = {
        "TTFT": (times.ttft_s or 0.0) / prompt_s,
        "E2E": (times.e2e_s or 0.0) / (prompt_s + token_s * (row.num_output_tokens - 1)),
    }
    if times.tpot_s is not None:
        found["TBT"] = times.tpot_s / token_s
    return found


def _arrivals(lengths: Sequence[tuple[int, int]], rate: float) -> list[WorkloadRequest]:
    rng, at_s, rows = random.Random("splitwise"), 0.0, []
    for row, (num_prompt, num_output) in enumerate(rng.sample(lengths, _NUM_REQUESTS)):
        rows.append(
            WorkloadRequest(row=row, num_prompt_tokens=num_prompt, num_output_tokens=num_output, arrived_at_s=at_s)
        )
        at_s += rng.expovariate(rate)
    return rows
