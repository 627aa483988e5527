"""What the interference measurement found, per variant and as ratios. Pure.

The rule for "the best chunk size of unified serving": the lowest p90 ITL among the chunk sizes whose p90 TTFT is at
most twice the best p90 TTFT of all unified variants. A tiny chunk that starves the prompts does not win by that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table

from relevo.bench.interference.phase import PhaseResult
from relevo.telemetry.latency import Summary, milliseconds, summarise

TTFT_TOLERANCE = 2.0  # part of the rule above
BEST_RULE = "lowest ITL p90 among the chunk sizes whose TTFT p90 is within 2x of the best unified TTFT p90"


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One way to serve. `chunk_size` in tokens; None: the server's own default."""

    name: str
    is_unified: bool
    chunk_size: int | None = None
    flags: tuple[str, ...] = ()
    url: str | None = None  # of a server that runs already; None: start one with `flags`


@dataclass(slots=True)
class VariantResult:
    """All phases of one variant; percentiles are over the samples of all rounds together."""

    variant: Variant
    phases: list[PhaseResult] = field(default_factory=list)

    @property
    def itl(self) -> Summary | None:
        return _summary([gap for phase in self.phases for gap in phase.itl_s])

    @property
    def baseline_itl(self) -> Summary | None:
        return _summary([gap for phase in self.phases for gap in phase.baseline_itl_s])

    @property
    def ttft(self) -> Summary | None:
        return _summary([ttft_s for phase in self.phases for ttft_s in phase.ttft_s])

    @property
    def num_prompts(self) -> int:
        return sum(phase.num_prompts for phase in self.phases)

    @property
    def num_failed(self) -> int:
        return sum(phase.num_failed for phase in self.phases)


@dataclass(slots=True, kw_only=True)
class InterferenceReport:
    """The whole measurement. `results` holds whatever was finished when it was stopped."""

    sustained_prompts_per_s: float = 0.0
    arrival_rate_per_s: float = 0.0
    results: list[VariantResult] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        best = best_unified(self.results)
        return {
            "sustained_prompts_per_s": self.sustained_prompts_per_s,
            "arrival_rate_per_s": self.arrival_rate_per_s,
            "best_unified_rule": BEST_RULE,
            "best_unified": best.variant.name if best else None,
            "ratios_best_unified_to_disaggregated": ratios(self.results),
            "variants": [_variant_json(result) for result in self.results],
        }


def best_unified(results: Sequence[VariantResult]) -> VariantResult | None:
    """The unified variant that `BEST_RULE` picks; None if none was measured."""
    measured = [
        (result, result.itl.p90, result.ttft.p90)
        for result in results
        if result.variant.is_unified and result.itl is not None and result.ttft is not None
    ]
    if not measured:
        return None
    limit_s = TTFT_TOLERANCE * min(ttft_p90 for _, _, ttft_p90 in measured)
    fast_enough = [(itl_p90, index) for index, (_, itl_p90, ttft_p90) in enumerate(measured) if ttft_p90 <= limit_s]
    return measured[min(fast_enough)[1]][0]


def ratios(results: Sequence[VariantResult]) -> dict[str, float]:
    """Best unified divided by the first disaggregated variant, per percentile; above 1: disaggregated is faster."""
    unified = best_unified(results)
    split = next((result for result in results if not result.variant.is_unified), None)
    if unified is None or split is None:
        return {}
    pairs = {"itl": (unified.itl, split.itl), "ttft": (unified.ttft, split.ttft)}
    found: dict[str, float] = {}
    for name, (ours, theirs) in pairs.items():
        for quantile in ("p50", "p90", "p99"):
            if ours is not None and theirs is not None and getattr(theirs, quantile) > 0:
                found[f"{name}_{quantile}"] = getattr(ours, quantile) / getattr(theirs, quantile)
    return found


def interference_tables(report: InterferenceReport) -> RenderableType:
    """Every variant, then the ratios."""
    best = best_unified(report.results)
    table = Table(
        title=f"Decoding streams while long prompts arrive at {report.arrival_rate_per_s:.3f}/s"
        f" (prefill sustains {report.sustained_prompts_per_s:.3f}/s alone), ms",
        title_justify="left",
    )
    table.add_column("variant")
    headings = ("ITL p50", "p90", "p99", "alone p50", "p90", "TTFT p50", "p90", "prompts", "failed", "gaps")
    for heading in headings:
        table.add_column(heading, justify="right")
    for result in report.results:
        mark = " (best unified)" if result is best else ""
        itl, alone, ttft = result.itl, result.baseline_itl, result.ttft
        cells = [
            *((itl.p50, itl.p90, itl.p99) if itl else (None,) * 3),
            *((alone.p50, alone.p90) if alone else (None,) * 2),
            *((ttft.p50, ttft.p90) if ttft else (None,) * 2),
        ]
        counts = (str(result.num_prompts), str(result.num_failed), str(itl.count if itl else 0))
        table.add_row(result.variant.name + mark, *(milliseconds(cell) for cell in cells), *counts)
    return Group(table, _ratio_table(report.results), f"Best unified: {BEST_RULE}.")


def _ratio_table(results: Sequence[VariantResult]) -> Table:
    table = Table(title="Best unified / disaggregated (above 1: disaggregated is faster)", title_justify="left")
    found = ratios(results)
    for name in found:
        table.add_column(name.replace("_", " ").upper().replace(" P", " p"), justify="right")
    if found:
        table.add_row(*(f"{value:.2f}x" for value in found.values()))
    return table


def _summary(values: list[float]) -> Summary | None:
    return summarise(values) if values else None


def _variant_json(result: VariantResult) -> dict[str, Any]:
    summaries = {"itl_s": result.itl, "baseline_itl_s": result.baseline_itl, "client_ttft_s": result.ttft}
    return {
        **asdict(result.variant),
        **{name: None if summary is None else asdict(summary) for name, summary in summaries.items()},
        "num_prompts": result.num_prompts,
        "num_failed": result.num_failed,
        "phases": [asdict(phase) for phase in result.phases],
    }
