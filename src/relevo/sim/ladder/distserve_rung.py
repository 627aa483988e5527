"""Rung 3: DistServe's results with its coefficients: the best layout of OPT-13B and its rate, and OPT-66B against vLLM.

Published: 1.56 requests a second and GPU on four A100, prefill on two and decode on one, where 90 % of 300 requests
have TTFT up to 200 ms and 90 % a TPOT up to 100 ms (README of LLMServe/DistServe; a bisection in steps of 0.16).
Chatbot goodput per GPU 2.0 to 4.6 times that of vLLM (OSDI'24).

Its ShareGPT sample is not public in tokens. Lengths here are those of another sample, scaled to the published means
(755.5 in, 200.3 out), longer ones than OPT takes left out.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

from relevo.sim.ladder.clusters import Cluster, Group, finished, simulate
from relevo.sim.ladder.errors import RungReport, ValueTable
from relevo.sim.tables.distserve import read_distserve
from relevo.workload.requests import WorkloadRequest
from relevo.workload.traces.files import ReadOptions, read_trace_file
from relevo.workload.traces.formats import TraceFormat

PROFILES, LENGTHS = Path("profiles/distserve"), Path("traces/derived_sharegpt_lengths.jsonl")
_SMALL, _LARGE = "facebook/opt-13b", "facebook/opt-66b"
_MEAN_PROMPT, _MEAN_OUTPUT, _MOST_TOKENS, _LEAST_TOKENS = 755.5, 200.3, 2048, 4  # required: as published
_KV_BYTES = {_SMALL: 819_200, _LARGE: 2_359_296}  # per token
# Tokens that fit, by model, tensor parallelism and stages (simdistserve/estimators/profile_data/max_num_tokens.csv).
_POOL = {(_SMALL, 1, 1): 66_144, (_SMALL, 2, 1): 163_008, (_LARGE, 4, 1): 78_496, (_LARGE, 2, 2): 78_512}
_NVLINK_BYTES_PER_S = 300e9
_NUM_REQUESTS, _SEEDS, _SHARE = 300, (0, 1), 0.90
_SMALL_SLO_S, _LARGE_SLO_S = (0.2, 0.1), (2.5, 0.15)  # TTFT, TPOT
_LAYOUTS = ((2, 1), (1, 1), (1, 2), (2, 2))
_SMALL_RATES = (1.25, 1.5625, 1.875)  # per GPU: points of the published bisection
_VLLM_RATES, _SPLIT_RATES = (1.0, 1.5, 2.0, 3.0, 4.0), (4.0, 6.0, 8.0)

Lengths = Sequence[tuple[int, int]]
Shape = tuple[int, int]  # tensor parallelism, stages


def distserve_rung(folder: Path) -> RungReport:
    coefficients = {name: _read(folder, name) for name in ("distserve", "vllm")}
    lengths = scaled_lengths(folder)
    return RungReport(
        rung=3,
        title="DistServe's placement of OPT-13B, and OPT-66B against vLLM",
        facts={
            "requests": _NUM_REQUESTS,
            "seeds": len(_SEEDS),
            "mean prompt": round(fmean(prompt for prompt, _ in lengths), 1),
            "mean output": round(fmean(output for _, output in lengths), 1),
        },
        tables=[_small_table(coefficients["distserve"], lengths), _large_table(coefficients, lengths)],
    )


def scaled_lengths(folder: Path) -> list[tuple[int, int]]:
    options = ReadOptions(format=TraceFormat.SHAREGPT)
    rows = read_trace_file(folder / LENGTHS, options).requests
    pairs = [(row.num_prompt_tokens, row.num_output_tokens) for row in rows]
    pairs = [pair for pair in pairs if min(pair) >= _LEAST_TOKENS and sum(pair) <= _MOST_TOKENS]
    for _ in range(4):  # what is cut off at the longest lowers the mean a little
        by_prompt = _MEAN_PROMPT / fmean(prompt for prompt, _ in pairs)
        by_output = _MEAN_OUTPUT / fmean(output for _, output in pairs)
        pairs = [_within(prompt * by_prompt, output * by_output) for prompt, output in pairs]
    return pairs


def _within(prompt: float, output: float) -> tuple[int, int]:
    num_prompt = min(max(_LEAST_TOKENS, round(prompt)), _MOST_TOKENS - _LEAST_TOKENS)
    return num_prompt, min(max(_LEAST_TOKENS, round(output)), _MOST_TOKENS - num_prompt)


def _small_table(coefficients: Mapping[str, Any], lengths: Lengths) -> ValueTable:
    rows = []
    for prefill, decode in _LAYOUTS:
        num_devices = prefill + decode
        groups = _split(coefficients, _SMALL, (prefill, 1), (decode, 1))
        attained = {rate: _attained(groups, _SMALL, lengths, rate * num_devices, _SMALL_SLO_S) for rate in _SMALL_RATES}
        shares = [f"{min(found):.1%}" for found in attained.values()]
        best = rate_at_share({rate: min(found) for rate, found in attained.items()})
        rows.append([f"prefill x{prefill}, decode x{decode}", *shares, best])
    rates = [f"at {rate}/s/GPU" for rate in _SMALL_RATES]
    return ValueTable(
        title="OPT-13B, ShareGPT, TTFT 200 ms and TPOT 100 ms each at 90 %: the lesser share that is met",
        goal="best is prefill x2, decode x1, with 1.56/s/GPU",
        columns=("layout", *rates, "90 % at /s/GPU"),
        rows=rows,
    )


def _large_table(coefficients: Mapping[str, Any], lengths: Lengths) -> ValueTable:
    together = [_group(coefficients["vllm"], _LARGE, "unified", (4, 1))]
    split = _split(coefficients["distserve"], _LARGE, (4, 1), (2, 2))
    rows = []
    for name, groups, num_devices, rates in (
        ("vLLM, 4 GPUs", together, 4, _VLLM_RATES),
        ("prefill x4, decode x2 in 2 stages, 8 GPUs", split, 8, _SPLIT_RATES),
    ):
        met = {rate: min(_attained(groups, _LARGE, lengths, rate, _LARGE_SLO_S)) for rate in rates}
        shares = ", ".join(f"{rate:g}: {share:.1%}" for rate, share in met.items())
        rows.append([name, shares, rate_at_share({rate / num_devices: share for rate, share in met.items()})])
    return ValueTable(
        title="OPT-66B, ShareGPT, TTFT 2.5 s and TPOT 150 ms: the lesser share that is met",
        goal="2.0 to 4.6 times the rate per GPU of vLLM",
        columns=("layout", "share by requests a second", "90 % at /s/GPU"),
        rows=rows,
    )


def rate_at_share(met: Mapping[float, float]) -> str:
    """Where the share falls below 90 %, straight between the rates; beyond them a bound."""
    points = sorted(met.items())
    if points[0][1] < _SHARE:
        return f"< {points[0][0]:.2f}"
    for (low, high_share), (high, low_share) in pairwise(points):
        if low_share < _SHARE:
            return f"{low + (high - low) * (high_share - _SHARE) / (high_share - low_share):.2f}"
    return f"> {points[-1][0]:.2f}"


def _attained(
    groups: Sequence[Group], model: str, lengths: Lengths, rate: float, slo_s: tuple[float, float]
) -> tuple[float, float]:
    """Shares of requests that meet TTFT, and TPOT; means over the seeds."""
    met_ttft, met_tpot = [], []
    for seed in _SEEDS:
        cluster = Cluster(
            groups=groups, kv_bytes_per_token=_KV_BYTES[model], link_bytes_per_s=_NVLINK_BYTES_PER_S, seed=seed
        )
        times = [each.times for each in finished(simulate(cluster, _arrivals(lengths, rate, seed)))]
        met_ttft.append(fmean((each.ttft_s or 0.0) <= slo_s[0] for each in times))
        met_tpot.append(fmean((each.tpot_s or 0.0) <= slo_s[1] for each in times))
    return fmean(met_ttft), fmean(met_tpot)


def _arrivals(lengths: Lengths, rate: float, seed: int) -> list[WorkloadRequest]:
    """Poisson."""
    rng, at_s, rows = random.Random(f"distserve:{seed}"), 0.0, []
    for row, (num_prompt, num_output) in enumerate(rng.sample(lengths, _NUM_REQUESTS)):
        rows.append(
            WorkloadRequest(row=row, num_prompt_tokens=num_prompt, num_output_tokens=num_output, arrived_at_s=at_s)
        )
        at_s += rng.expovariate(rate)
    return rows


def _split(coefficients: Mapping[str, Any], model: str, prefill: Shape, decode: Shape) -> list[Group]:
    return [_group(coefficients, model, "prefill", prefill), _group(coefficients, model, "decode", decode)]


def _group(coefficients: Mapping[str, Any], model: str, role: str, shape: Shape) -> Group:
    num_tokens = _POOL[model, *shape]
    return Group(
        role=role,
        num_workers=1,
        times=read_distserve(coefficients, model, *shape),
        num_pool_tokens=num_tokens,
        max_step_tokens=num_tokens,  # whole prompts, as many as wait
        max_rows=_NUM_REQUESTS,
    )


def _read(folder: Path, engine: str) -> Mapping[str, Any]:
    path = folder / PROFILES / f"profiler-a100-80g.{engine}.json"
    parsed: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return parsed
