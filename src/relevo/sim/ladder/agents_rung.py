"""Rung 7: Cloudflare's story: agents on Kimi K2.5, the same GPUs colocated and split.

Published (2026-04): with prefill and decode apart, p90 time per token went from about 100 ms to 20 to 30 ms on the same
number of GPUs while traffic grew; better cache hits (60 to 80 %) came from session affinity. Which GPUs, how many, the
ratio, lengths and rates were not published: here they are assumed, and varied.

Requests have the published means of GitHub Copilot's coding agents: 67.8k prompt tokens, 527 output tokens, 85 % of
prompts cached. Step times are the analytic model's with vLLM's constants on H200, fitted to other runs (rung 1).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from statistics import fmean

from relevo.policy.perf.devices import device
from relevo.policy.perf.known_engines import known_engine
from relevo.policy.perf.memory_plan import MemoryLimits, memory_plan
from relevo.policy.perf.parallelism import Parallelism
from relevo.policy.perf.roofline import RooflineModel
from relevo.policy.perf.step_work import DeviceWork
from relevo.sim.ladder.clusters import Cluster, Group, finished, simulate
from relevo.sim.ladder.errors import RungReport, ValueTable
from relevo.sim.tables.model_files import config_path, read_model_shape
from relevo.telemetry.latency import percentile
from relevo.workload.generated import generate
from relevo.workload.lengths import FixedLength, LognormalLengths, UniformLengths
from relevo.workload.requests import Workload, WorkloadRequest
from relevo.workload.sessions import SessionShape
from relevo.workload.timing import Timing, time_workload

CONFIGS = Path("model_configs")
_MODEL, _DEVICE, _ENGINE = "moonshotai/Kimi-K2.5", "h200", "vllm"
_NODE = Parallelism(attention_data=8, expert=8)  # tensor ranks would each hold a copy of every latent
_NUM_NODES = 4
_BLOCK_SIZE = 512
_CONTEXT = 262_144
_CHUNKS, _USUAL_CHUNK, _SPLIT_CHUNK = (512, 2048, 8192), 2048, 8192  # tokens of a step
_AGENTS = SessionShape(
    num_turns=UniformLengths(7, 11),
    system_tokens=FixedLength(16_000),
    turn_tokens=UniformLengths(2_000, 17_500),  # what tools answered
    output_tokens=LognormalLengths(400, 2.1),
    num_groups=8,
    mean_gap_s=2.0,  # a tool runs
)
_MEAN_TURNS = 9
_SESSIONS_PER_CLIENT = 2
_STEADY = 0.2, 0.8  # of the arrivals: agents begin together, and leave one after the other
_COLUMNS = (
    "nodes, tokens of a step", "calls/s", "cached", "TPOT p50, ms", "TPOT p90, ms", "gaps p90, ms", "gaps p99, ms",
    "TTFT p50, s", "TTFT p90, s",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """Nodes that are all unified, or split."""

    num_prefill: int = 0  # 0: unified
    chunk_tokens: int = _SPLIT_CHUNK
    pool_share: float = 1.0  # of the memory left for KV
    link_share: float = 1.0  # of the nodes' network

    @property
    def name(self) -> str:
        if not self.num_prefill:
            return f"{_NUM_NODES} colocated, {self.chunk_tokens}"
        return f"{self.num_prefill}P {_NUM_NODES - self.num_prefill}D, {self.chunk_tokens}"


_COLOCATED, _SPLIT = Fleet(chunk_tokens=_USUAL_CHUNK), Fleet(num_prefill=2)
_USUAL_AGENTS = 48
_VARIATIONS: Sequence[tuple[str, int, Sequence[Fleet]]] = (
    ("24 agents", 24, (_COLOCATED, _SPLIT)),
    ("80 agents", 80, (_COLOCATED, _SPLIT)),
    (
        "a quarter of the KV memory",
        _USUAL_AGENTS,
        (replace(_COLOCATED, pool_share=0.25), replace(_SPLIT, pool_share=0.25)),
    ),
    ("1/32 of the network, 12.5 GB/s a node", _USUAL_AGENTS, (replace(_SPLIT, link_share=1 / 32),)),
)


def agents_rung(folder: Path) -> RungReport:
    nodes = AgentNodes(folder)
    fleets = [Fleet(chunk_tokens=chunk) for chunk in _CHUNKS]
    fleets += [Fleet(num_prefill=number) for number in range(1, _NUM_NODES)]
    usual = agent_calls(_USUAL_AGENTS)
    varied = [
        [f"{name}: {fleet.name}", *nodes.row(fleet, agent_calls(num_agents))]
        for name, num_agents, changed in _VARIATIONS
        for fleet in changed
    ]
    goal = "p90 from about 100 ms to 20 to 30 ms"
    return RungReport(
        rung=7,
        title="Cloudflare's story: agents on Kimi K2.5, the same GPUs colocated and split",
        facts={
            "nodes": f"{_NUM_NODES} of 8 H200, each {nodes.num_pool_tokens:,} tokens of KV",
            "agents": _USUAL_AGENTS,
            "calls": len(usual),
            "mean prompt and output": f"{fmean(row.num_prompt_tokens for row in usual):,.0f} and"
            f" {fmean(row.num_output_tokens for row in usual):,.0f} tokens",
        },
        tables=[
            ValueTable(
                title=f"{_USUAL_AGENTS} agents",
                goal=goal,
                columns=_COLUMNS,
                rows=[[fleet.name, *nodes.row(fleet, usual)] for fleet in fleets],
            ),
            ValueTable(title="the same, one assumption changed", goal="-", columns=_COLUMNS, rows=varied),
        ],
        notes=["TPOT is a call's mean; gaps are between tokens, over all calls; the middle 60 % of arrivals count"],
    )


def agent_calls(num_agents: int, sessions_each: int = _SESSIONS_PER_CLIENT) -> Sequence[WorkloadRequest]:
    """Closed loop: so many agents at a time, each with one session after the other."""
    calls = generate(_AGENTS, random.Random("agents"), _BLOCK_SIZE)
    rows = list(islice(calls, num_agents * sessions_each * _MEAN_TURNS))
    return time_workload(Workload(requests=rows), Timing(num_clients=num_agents)).requests


class AgentNodes:
    """Nodes that hold the model, under any fleet of them."""

    def __init__(self, folder: Path) -> None:
        shape = read_model_shape(config_path(folder / CONFIGS, _MODEL))
        self._work = DeviceWork(shape, device(_DEVICE), _NODE)
        self._times = RooflineModel(self._work, known_engine(_ENGINE, _DEVICE))
        limits = MemoryLimits(block_size=_BLOCK_SIZE, utilization=0.9)
        self.num_pool_tokens = memory_plan(shape, self._work.device, _NODE, limits).num_pool_tokens

    def row(self, fleet: Fleet, calls: Sequence[WorkloadRequest]) -> list[str]:
        results = sorted(finished(simulate(self._cluster(fleet), calls)), key=lambda each: each.arrived_at_ns)
        first, last = (round(share * len(results)) for share in _STEADY)
        steady = results[first:last]
        times = [each.times for each in steady]
        tpots = sorted(each.tpot_s for each in times if each.tpot_s is not None)
        gaps = sorted(gap_s for each in times for gap_s in each.itl_s)
        firsts = sorted(each.ttft_s or 0.0 for each in times)
        span_s = (steady[-1].arrived_at_ns - steady[0].arrived_at_ns) / 1e9
        cached = sum(each.num_cached_tokens for each in steady) / sum(each.num_prompt_tokens for each in steady)
        in_ms = [(tpots, 0.5), (tpots, 0.9), (gaps, 0.9), (gaps, 0.99)]
        return [
            f"{len(steady) / span_s:.2f}",
            f"{cached:.0%}",
            *(f"{percentile(values, share) * 1e3:.1f}" for values, share in in_ms),
            *(f"{percentile(firsts, share):.2f}" for share in (0.5, 0.9)),
        ]

    def _cluster(self, fleet: Fleet) -> Cluster:
        numbers = {"unified": _NUM_NODES}
        if fleet.num_prefill:
            numbers = {"prefill": fleet.num_prefill, "decode": _NUM_NODES - fleet.num_prefill}
        groups = [
            Group(
                role=role,
                num_workers=number,
                times=self._times,
                num_pool_tokens=round(self.num_pool_tokens * fleet.pool_share),
                max_step_tokens=fleet.chunk_tokens,
            )
            for role, number in numbers.items()
        ]
        return Cluster(
            groups=groups,
            kv_bytes_per_token=round(self._work.shape.kv_bytes_per_token()),
            link_bytes_per_s=self._work.device.network_bytes_per_s * _NODE.num_devices * fleet.link_share,
            has_prefix_cache=True,
            block_size=_BLOCK_SIZE,
            max_model_len=_CONTEXT,
        )
