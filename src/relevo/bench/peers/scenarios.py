"""What is measured on each server of a comparison, and how records become figures. Pure but for sending the requests.

A scenario sends `num_streams` requests at once and has one value per metric and run. Latencies are those of
`telemetry.latency` on the client's clock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from relevo.bench.client import OpenAIClient
from relevo.bench.peers.dialect import Dialect, answer_fault
from relevo.bench.peers.prompts import PeerPrompt
from relevo.bench.records import ClientRecord
from relevo.telemetry.latency import summarise

MS_PER_S = 1e3
PREFILL_OUTPUT_TOKENS = 2  # arbitrary: the first one is measured


@dataclass(frozen=True, slots=True)
class Metric:
    """One row of the table."""

    name: str
    lower_is_better: bool


COLD_START = Metric("cold start to first token, s", lower_is_better=True)


class ScenarioKind(StrEnum):
    DECODE = "decode"  # one stream: time per output token
    PREFILL = "prefill"  # one stream: time to first token
    STREAMS = "streams"  # many at once


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    kind: ScenarioKind
    prompt_len: int  # tokens
    max_tokens: int
    num_streams: int = 1

    @property
    def label(self) -> str:
        if self.kind is ScenarioKind.STREAMS:
            return f"{self.num_streams} streams of {self.prompt_len} + {self.max_tokens} tokens"
        return f"{self.kind} at {self.prompt_len} tokens"

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """In the order of `values`."""
        if self.kind is ScenarioKind.DECODE:
            return (Metric(f"decode, context {self.prompt_len}: ms/token", lower_is_better=True),)
        if self.kind is ScenarioKind.PREFILL:
            return (
                Metric(f"prefill of {self.prompt_len}: tokens/s", lower_is_better=False),
                Metric(f"prefill of {self.prompt_len}: TTFT ms", lower_is_better=True),
            )
        streams = f"{self.num_streams} streams"
        latencies = ("TTFT p50 ms", "TTFT p90 ms", "ITL p50 ms", "ITL p90 ms", "ITL p99 ms")
        return (
            Metric(f"{streams}: output tokens/s", lower_is_better=False),
            *(Metric(f"{streams}: {name}", lower_is_better=True) for name in latencies),
        )

    def values(self, records: Sequence[ClientRecord]) -> tuple[float, ...]:
        """Of one run whose answers are all complete."""
        ttfts_s = [ttft_s for record in records if (ttft_s := record.times.ttft_s) is not None]
        if self.kind is ScenarioKind.DECODE:
            return ((records[0].tpot_s or 0.0) * MS_PER_S,)
        if self.kind is ScenarioKind.PREFILL:
            return self.prompt_len / ttfts_s[0], ttfts_s[0] * MS_PER_S
        ended_ns = max(record.finished_at_ns or 0 for record in records)
        span_s = (ended_ns - min(record.sent_at_ns for record in records)) / 1e9
        output_tokens_per_s = sum(record.num_output_tokens for record in records) / span_s
        ttft = summarise(ttfts_s)
        gaps_s = [gap_s for record in records for gap_s in record.times.itl_s]
        itl = summarise(gaps_s or [0.0])  # a server that sends everything at once has no gaps
        return (output_tokens_per_s, *(s * MS_PER_S for s in (ttft.p50, ttft.p90, itl.p50, itl.p90, itl.p99)))


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioRun:
    """`fault`: the sentence that voids the run, or None; then `values` is empty."""

    values: tuple[float, ...]
    num_cached_tokens: int
    fault: str | None


async def run_scenario(
    client: OpenAIClient, dialect: Dialect, scenario: Scenario, prompts: Sequence[PeerPrompt]
) -> ScenarioRun:
    """All prompts at once. Every answer must have exactly the number of tokens asked for."""
    async with asyncio.TaskGroup() as tasks:
        asking = [
            tasks.create_task(dialect.ask(client, prompt, scenario.max_tokens, index))
            for index, prompt in enumerate(prompts)
        ]
    records = [task.result() for task in asking]
    faults = [fault for record in records if (fault := answer_fault(record, dialect)) is not None]
    num_cached = sum(record.num_cached_tokens for record in records)
    if faults:
        return ScenarioRun(values=(), num_cached_tokens=num_cached, fault=f"{scenario.label}: {faults[0]}")
    return ScenarioRun(values=scenario.values(records), num_cached_tokens=num_cached, fault=None)
