"""Reader of what `relevo bench record` wrote: load tests of one of our own servers, and the server as it was.

Step costs come with each run as the workers had fitted them by its end. Knows files; simulates nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from relevo.client.prometheus_text import samples
from relevo.core.errors import StartError
from relevo.policy.perf.step_time import FittedStepTimes
from relevo.sim.tables.live_worker import read_metrics


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveRequest:
    num_prompt_tokens: int
    num_output_tokens: int  # asked for, if it did not complete
    sent_at_s: float
    ttft_s: float | None  # as its client saw it; None: it did not complete
    tpot_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveRun:
    name: str
    requests: Sequence[LiveRequest]
    costs: Mapping[str, FittedStepTimes]  # by worker, as of its end
    lateness_p99_s: float  # of the load generator


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveWorker:
    worker_id: str
    role: str
    block_size: int
    num_blocks: int
    step_budget_tokens: int
    prefill_budget_tokens: int  # beside decodes


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveServer:
    topology: str
    max_running: int
    max_model_len: int
    capacity_per_s: float
    workers: Sequence[LiveWorker]
    quiet: LiveRun  # one client alone
    capacity: LiveRun  # clients that wait for their answers
    loads: Mapping[int, LiveRun]  # by percent of capacity


def read_live_servers(folder: Path) -> list[LiveServer]:
    """One per topology. Raises FileNotFoundError for a recording that was cut short, StartError where there is none."""
    paths = sorted(folder.glob("*/server.json"))
    if not paths:
        raise StartError(f"{folder} holds no recorded runs: make them with relevo bench record {folder}")
    return [_read_server(path) for path in paths]


def _read_server(path: Path) -> LiveServer:
    facts = json.loads(path.read_text(encoding="utf-8"))
    folder = path.parent
    return LiveServer(
        topology=facts["topology"],
        max_running=facts["max_running"],
        max_model_len=facts["max_model_len"],
        capacity_per_s=facts["capacity_per_s"],
        workers=read_workers((folder / "capacity.prom").read_text(encoding="utf-8")),
        quiet=_read_run(folder, "quiet"),
        capacity=_read_run(folder, "capacity"),
        loads={percent: _read_run(folder, f"load-{percent}") for percent in facts["load_percents"]},
    )


def read_workers(scrape: str) -> list[LiveWorker]:
    """Pools and step budgets, as a gateway's metrics tell them. Earlier releases told none of their own for prompts."""
    pools: dict[str, dict[str, str]] = {}
    budgets: dict[str, int] = {}
    prefill_budgets: dict[str, int] = {}
    for sample in samples(scrape):
        if sample.name == "vllm:cache_config_info":
            pools[sample.labels["engine"]] = sample.labels
        elif sample.name == "relevo:step_budget_tokens":
            budgets[sample.labels["worker"]] = int(sample.value)
        elif sample.name == "relevo:prefill_budget_tokens":
            prefill_budgets[sample.labels["worker"]] = int(sample.value)
    return [
        LiveWorker(
            worker_id=worker_id,
            role=pool["role"],
            block_size=int(pool["block_size"]),
            num_blocks=int(pool["num_gpu_blocks"]),
            step_budget_tokens=budgets[worker_id],
            prefill_budget_tokens=prefill_budgets.get(worker_id, budgets[worker_id]),
        )
        for worker_id, pool in pools.items()
    ]


def _read_run(folder: Path, name: str) -> LiveRun:
    report = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    return LiveRun(
        name=name,
        requests=[_request(row) for row in report["requests"] if row["sent_at_s"] is not None],
        costs=read_metrics((folder / f"{name}.prom").read_text(encoding="utf-8")),
        lateness_p99_s=report["report"]["lateness_p99_s"],
    )


def _request(row: Mapping[str, Any]) -> LiveRequest:
    has_completed = row["outcome"] == "completed"
    return LiveRequest(
        num_prompt_tokens=row["num_prompt_tokens"] or row["num_wanted_input_tokens"],
        num_output_tokens=row["num_output_tokens"] if has_completed else row["max_tokens"],
        sent_at_s=row["sent_at_s"],
        ttft_s=row["client_ttft_s"] if has_completed else None,
        tpot_s=row["tpot_s"] if has_completed else None,
    )
