"""`bench interference` as a report: distributions by variant, and the ratio with its spread over the rounds. Pure."""

from __future__ import annotations

from dataclasses import replace

from relevo.bench.html.figures import Axis, Range, Ranges, cumulative
from relevo.bench.html.page import Report
from relevo.bench.interference.report import (
    InterferenceReport,
    VariantResult,
    best_unified,
    interference_tables,
    ratios,
)
from relevo.telemetry.distribution import Samples


def interference_page(report: InterferenceReport) -> Report:
    results = [result for result in report.results if result.phases]
    itl = {r.variant.name: Samples([gap for phase in r.phases for gap in phase.itl_s]) for r in results}
    ttft = {r.variant.name: Samples([value for phase in r.phases for value in phase.ttft_s]) for r in results}
    return Report(
        title="Decoding streams while long prompts arrive",
        sentence=_sentence(report),
        tables=interference_tables(report),
        figures=[
            cumulative("ITL of the streams while prompts arrive", itl),
            cumulative("TTFT of the arriving prompts", ttft),
            Ranges(
                title="Best unified / disaggregated",
                axis=Axis(label="ratio; above 1: disaggregated is faster", is_log=True),
                rows=ratio_ranges(report),
                reference=1.0,
                unit="x",
                note="The point is over all rounds; the line goes from the least to the most of a round.",
            ),
        ],
    )


def ratio_ranges(report: InterferenceReport) -> list[Range]:
    """Of the same two variants in every round."""
    overall, unified = ratios(report.results), best_unified(report.results)
    split = next((result for result in report.results if not result.variant.is_unified), None)
    if unified is None or split is None:
        return []
    by_round = [
        ratios([_only(split, number), _only(unified, number)])
        for number in range(min(len(split.phases), len(unified.phases)))
    ]
    rows = []
    for name, value in overall.items():
        seen = [value, *(found[name] for found in by_round if name in found)]
        rows.append(Range(name.replace("_", " ").upper().replace(" P", " p"), value, min(seen), max(seen)))
    return rows


def _only(result: VariantResult, number: int) -> VariantResult:
    return replace(result, phases=[result.phases[number]])


def _sentence(report: InterferenceReport) -> str:
    best, found = best_unified(report.results), ratios(report.results)
    split = next((result for result in report.results if not result.variant.is_unified), None)
    if best is None or split is None or "itl_p99" not in found:
        return "Too little was measured to compare unified serving with disaggregation."
    return (
        f"While prompts arrive, ITL p99 of {best.variant.name} is {found['itl_p99']:.2f} times that of "
        f"{split.variant.name}, and its TTFT p90 {found.get('ttft_p90', 0.0):.2f} times."
    )
