"""What a comparison of routing variants says: hits weighted by tokens, TTFT, and how evenly prefill was shared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.table import Table

from relevo.bench.records import ClientRecord, Outcome
from relevo.telemetry.latency import Summary, milliseconds, summarise


@dataclass(slots=True, kw_only=True)
class VariantRun:
    """One variant in one round."""

    variant: str
    records: list[ClientRecord]
    prefill_tokens: Mapping[str, float]  # computed, per worker


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantSummary:
    """One variant over all rounds."""

    variant: str
    num_completed: int
    num_failed: int
    num_input_tokens: int
    num_cached_tokens: int
    ttft: Summary | None
    prefill_tokens: Mapping[str, float]

    @property
    def hit_fraction(self) -> float:
        """Cached of all input tokens."""
        return self.num_cached_tokens / self.num_input_tokens if self.num_input_tokens else 0.0

    def skew(self, role: str = "") -> float:
        """Most over mean of the prefill tokens of the workers whose id begins with `role`; 1 is even, 0: nothing."""
        shares = [tokens for worker, tokens in self.prefill_tokens.items() if worker.startswith(role)]
        total = sum(shares)
        return max(shares) * len(shares) / total if total else 0.0


@dataclass(slots=True)
class SessionsReport:
    runs: list[VariantRun] = field(default_factory=list)

    def summaries(self) -> list[VariantSummary]:
        """In the order in which the variants first ran."""
        by_variant: dict[str, list[VariantRun]] = {}
        for run in self.runs:
            by_variant.setdefault(run.variant, []).append(run)
        return [_summary(variant, runs) for variant, runs in by_variant.items()]

    def to_json(self) -> dict[str, Any]:
        return {
            "variants": [
                {
                    "variant": s.variant,
                    "completed": s.num_completed,
                    "failed": s.num_failed,
                    "input_tokens": s.num_input_tokens,
                    "cached_tokens": s.num_cached_tokens,
                    "hit_fraction": s.hit_fraction,
                    "ttft_p50_s": s.ttft.p50 if s.ttft else None,
                    "ttft_p90_s": s.ttft.p90 if s.ttft else None,
                    "ttft_p99_s": s.ttft.p99 if s.ttft else None,
                    "prefill_tokens": dict(s.prefill_tokens),
                    "skew_all": s.skew(),
                    "skew_prefill": s.skew("prefill"),
                }
                for s in self.summaries()
            ],
            "runs": [
                {
                    "variant": run.variant,
                    "prefill_tokens": dict(run.prefill_tokens),
                    "requests": [r.to_json(_start_ns(run.records)) for r in run.records],
                }
                for run in self.runs
            ],
        }


def sessions_table(report: SessionsReport) -> Table:
    table = Table(title="Sessions by routing variant", title_justify="left")
    table.add_column("variant")
    headings = ("turns", "failed", "input tokens", "hit ratio", "TTFT p50, ms", "p90", "p99", "max/mean prefill", "all")
    for heading in headings:
        table.add_column(heading, justify="right")
    for s in report.summaries():
        quantiles = (s.ttft.p50, s.ttft.p90, s.ttft.p99) if s.ttft else (None, None, None)
        table.add_row(
            s.variant,
            str(s.num_completed),
            str(s.num_failed),
            f"{s.num_input_tokens:,}",
            f"{100 * s.hit_fraction:.1f} %",
            *(milliseconds(value) for value in quantiles),
            f"{s.skew('prefill'):.2f}",
            f"{s.skew():.2f}",
        )
    return table


def _summary(variant: str, runs: Sequence[VariantRun]) -> VariantSummary:
    done = [r for run in runs for r in run.records if r.outcome is Outcome.COMPLETED]
    prefill: dict[str, float] = {}
    for run in runs:
        for worker, tokens in run.prefill_tokens.items():
            prefill[worker] = prefill.get(worker, 0.0) + tokens
    ttfts = ttfts_s(done)
    return VariantSummary(
        variant=variant,
        num_completed=len(done),
        num_failed=sum(1 for run in runs for r in run.records if r.outcome is Outcome.FAILED),
        num_input_tokens=sum(r.num_prompt_tokens or 0 for r in done),
        num_cached_tokens=sum(r.num_cached_tokens for r in done),
        ttft=summarise(ttfts) if ttfts else None,
        prefill_tokens=prefill,
    )


def ttfts_s(records: Sequence[ClientRecord]) -> list[float]:
    return [value for r in records if r.outcome is Outcome.COMPLETED and (value := r.times.ttft_s) is not None]


def _start_ns(records: Sequence[ClientRecord]) -> int:
    return min((r.sent_at_ns for r in records if r.sent_at_ns), default=0)
