"""Reader of LLMServingSim's recorded vLLM runs: every request's times, and what ran in each second.

Source: casys-kaist/LLMServingSim, bench/examples/CARD/MODEL/vllm, MIT: `meta.json`, `requests.jsonl`, `timeseries.csv`.
Times of a request are read off one clock; it counts from the first request's arrival in the queue.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from relevo.core.errors import StartError


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRequest:
    num_prompt_tokens: int
    num_output_tokens: int
    arrived_at_s: float
    first_token_at_s: float
    last_token_at_s: float

    @property
    def ttft_s(self) -> float:
        return self.first_token_at_s - self.arrived_at_s

    @property
    def tpot_s(self) -> float:
        return (self.last_token_at_s - self.first_token_at_s) / max(1, self.num_output_tokens - 1)

    @property
    def e2e_s(self) -> float:
        return self.last_token_at_s - self.arrived_at_s

    def context_at(self, at_s: float) -> float:
        """Tokens that its next token sees, while it decodes; 0 before and after."""
        if not self.first_token_at_s <= at_s < self.last_token_at_s:
            return 0.0
        share = (at_s - self.first_token_at_s) / (self.last_token_at_s - self.first_token_at_s)
        return self.num_prompt_tokens + share * self.num_output_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedSecond:
    ends_at_s: float
    num_running: int
    num_waiting: int
    prompt_tokens_per_s: float
    output_tokens_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmRun:
    card: str
    model: str
    tensor: int
    data: int  # engines that share the requests
    is_expert_parallel: bool
    max_rows: int  # of each engine
    max_step_tokens: int
    num_blocks: int | None  # of 16 tokens, where it was recorded
    requests: Sequence[RecordedRequest]
    seconds: Sequence[RecordedSecond]

    @property
    def name(self) -> str:
        return f"{self.model} on {self.card}"


def read_vllm_run(folder: Path) -> VllmRun:
    """`folder` is CARD/MODEL/vllm. Raises StartError."""
    meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
    settings = meta["engine_kwargs"]
    with (folder / "requests.jsonl").open(encoding="utf-8") as lines:
        records = [json.loads(line) for line in lines]
    if not records:
        raise StartError(f"{folder} holds no requests")
    zero_s = min(record["queued_ts"] for record in records)
    with (folder / "timeseries.csv").open(encoding="utf-8", newline="") as lines:
        seconds = [_second(record) for record in csv.DictReader(lines)]
    return VllmRun(
        card=folder.parent.parent.name,
        model=str(settings["model"]),
        tensor=settings["tensor_parallel_size"],
        data=settings["data_parallel_size"],
        is_expert_parallel=settings["enable_expert_parallel"],
        max_rows=settings["max_num_seqs"],
        max_step_tokens=settings["max_num_batched_tokens"],
        num_blocks=(meta.get("kv_cache") or {}).get("num_gpu_blocks"),
        requests=[_request(record, zero_s) for record in records],
        seconds=seconds,
    )


def _request(record: dict[str, float], zero_s: float) -> RecordedRequest:
    return RecordedRequest(
        num_prompt_tokens=int(record["input_toks"]),
        num_output_tokens=int(record["output_toks"]),
        arrived_at_s=record["queued_ts"] - zero_s,
        first_token_at_s=record["first_token_ts"] - zero_s,
        last_token_at_s=record["last_token_ts"] - zero_s,
    )


def _second(record: dict[str, str]) -> RecordedSecond:
    return RecordedSecond(
        ends_at_s=float(record["t"]),
        num_running=int(record["running"]),
        num_waiting=int(record["waiting"]),
        prompt_tokens_per_s=float(record["prompt_throughput"]),
        output_tokens_per_s=float(record["gen_throughput"]),
    )
