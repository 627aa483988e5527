"""From client records to the numbers of a load test. Pure: no clock, no terminal, no files.

Latencies cover completed requests only; failed and unfinished ones are counted next to them, never averaged in.
TTFT here is `client_ttft_s`: request written by the load generator -> first chunk with output read by it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from relevo.bench.records import ClientRecord, Outcome
from relevo.telemetry.distribution import Samples
from relevo.telemetry.latency import Slo, Summary, percentile, summarise

LATE_GENERATOR_S = 0.01  # p99 lateness above which the load generator is called too slow; arbitrary


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadReport:
    """The outcome of one load test. Rates are per second of `duration_s`: first request sent -> last one ended."""

    duration_s: float
    num_requests: int
    num_completed: int
    num_failed: int
    num_unfinished: int
    errors: dict[str, int]  # by kind
    finish_reasons: dict[str, int]
    requests_per_s: float
    input_tokens_per_s: float
    output_tokens_per_s: float
    num_input_tokens: int
    num_cached_tokens: int
    num_output_tokens: int
    goodput_per_s: float | None  # None: no SLO was given
    slo_met_fraction: float | None  # of all requests sent
    lateness_p99_s: float
    latencies: dict[str, Summary | None]  # "client_ttft_s", "itl_s", "tpot_s", "e2e_s"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def generator_was_late(self) -> bool:
        return self.lateness_p99_s > LATE_GENERATOR_S


def report_load(records: Sequence[ClientRecord], slo: Slo | None = None) -> LoadReport:
    """Sum up a run. Valid for any records, none at all included."""
    completed = [record for record in records if record.outcome is Outcome.COMPLETED]
    duration_s = _duration_s(records)
    input_tokens = sum(_num_input_tokens(record) for record in completed)
    output_tokens = sum(record.num_output_tokens for record in completed)
    num_met = sum(record.meets(slo) for record in completed) if slo else None
    lateness = sorted(record.lateness_s for record in records)

    def per_second(amount: float) -> float:
        return amount / duration_s if duration_s > 0 else 0.0

    return LoadReport(
        duration_s=duration_s,
        num_requests=len(records),
        num_completed=len(completed),
        num_failed=sum(record.outcome is Outcome.FAILED for record in records),
        num_unfinished=sum(record.outcome is Outcome.UNFINISHED for record in records),
        errors=dict(Counter(record.error for record in records if record.error is not None)),
        finish_reasons=dict(Counter(record.finish_reason or "none" for record in completed)),
        requests_per_s=per_second(len(completed)),
        input_tokens_per_s=per_second(input_tokens),
        output_tokens_per_s=per_second(output_tokens),
        num_input_tokens=input_tokens,
        num_cached_tokens=sum(record.num_cached_tokens for record in completed),
        num_output_tokens=output_tokens,
        goodput_per_s=None if num_met is None else per_second(num_met),
        slo_met_fraction=None if num_met is None else num_met / max(1, len(records)),
        lateness_p99_s=percentile(lateness, 0.99) if lateness else 0.0,
        latencies=_latencies(completed),
    )


def latency_samples(records: Sequence[ClientRecord]) -> dict[str, Samples]:
    """Of completed requests, by the keys of `telemetry.latency.LATENCY_LABELS`."""
    values: dict[str, list[float]] = {"ttft_s": [], "itl_s": [], "tpot_s": [], "e2e_s": []}
    for record in records:
        if record.outcome is not Outcome.COMPLETED:
            continue
        times = record.times
        single = (("ttft_s", times.ttft_s), ("tpot_s", record.tpot_s), ("e2e_s", times.e2e_s))
        for name, value in single:
            if value is not None:
                values[name].append(value)
        values["itl_s"] += times.itl_s
    return {name: Samples(of_kind) for name, of_kind in values.items()}


def _latencies(records: Sequence[ClientRecord]) -> dict[str, Summary | None]:
    samples = {name: of_kind.values_s for name, of_kind in latency_samples(records).items()}
    samples = {"client_ttft_s": samples.pop("ttft_s"), **samples}
    return {name: summarise(of_kind) if of_kind else None for name, of_kind in samples.items()}


def _num_input_tokens(record: ClientRecord) -> int:
    return record.num_wanted_input_tokens if record.num_prompt_tokens is None else record.num_prompt_tokens


def _duration_s(records: Sequence[ClientRecord]) -> float:
    sent = [record.sent_at_ns for record in records if record.sent_at_ns]
    ended = [record.finished_at_ns for record in records if record.finished_at_ns]
    last_chunks = [record.chunk_at_ns[-1] for record in records if record.chunk_at_ns]
    if not sent or not (ended or last_chunks):
        return 0.0
    return max(0, max(ended + last_chunks) - min(sent)) / 1e9
