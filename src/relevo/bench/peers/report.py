"""The figures of a comparison of servers: medians, ranges, and each of ours over the best peer's. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table

from relevo.bench.peers.scenarios import Metric

OURS = "relevo"
VARIANT = f"{OURS}+"  # before the name of another Relevo; a peer's name has no +


def is_ours(name: str) -> bool:
    return name == OURS or name.startswith(VARIANT)


@dataclass(slots=True)
class TargetResult:
    """Everything that was measured of one server. A run that failed left a fault instead of values."""

    name: str
    version: str = ""  # empty: not known
    prompt_form: str = ""
    extra: dict[str, Any] = field(default_factory=dict)
    values: dict[Metric, list[float]] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    num_cached_tokens: int = 0

    def add(self, metrics: Sequence[Metric], values: Sequence[float]) -> None:
        for metric, value in zip(metrics, values, strict=True):
            self.values.setdefault(metric, []).append(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One metric. `ratios` are ours / the best peer's median, of each of ours that has a value, if a peer has one."""

    metric: Metric
    medians: dict[str, float]  # by server, those that have a value
    best_peer: str | None
    ratios: dict[str, float]

    @property
    def ratio(self) -> float | None:
        """Of the first of ours."""
        return self.ratios.get(OURS)


@dataclass(slots=True)
class PeersReport:
    metrics: list[Metric] = field(default_factory=list)  # rows of the table
    results: list[TargetResult] = field(default_factory=list)  # ours first

    def result(self, name: str) -> TargetResult:
        return next(result for result in self.results if result.name == name)

    def comparisons(self) -> list[Comparison]:
        """For every metric that some server has a value of."""
        rows = []
        for metric in self.metrics:
            medians = {r.name: median(r.values[metric]) for r in self.results if r.values.get(metric)}
            if medians:
                rows.append(_compare(metric, medians))
        return rows

    @property
    def has_faults(self) -> bool:
        return any(result.faults for result in self.results)

    def notes(self) -> list[str]:
        """One sentence for each thing a reader of the table must know."""
        notes = [f"{result.name}: {fault}" for result in self.results for fault in dict.fromkeys(result.faults)]
        for result in self.results:
            if result.num_cached_tokens:
                notes.append(
                    f"{result.name} took {result.num_cached_tokens} prompt tokens from a cache: its TTFT and prefill "
                    "figures are better than what it computes; switch its prompt cache off"
                )
            if result.prompt_form == "chat":
                notes.append(f"{result.name} takes prompts as chat only: its template adds tokens to every prompt")
        return notes

    def to_json(self) -> dict[str, Any]:
        return {
            "servers": [
                {
                    "name": result.name,
                    "version": result.version,
                    "prompt_form": result.prompt_form,
                    "extra": result.extra,
                    "faults": result.faults,
                    "num_cached_tokens": result.num_cached_tokens,
                    "values": {metric.name: values for metric, values in result.values.items()},
                }
                for result in self.results
            ],
            "comparisons": [
                {
                    "metric": row.metric.name,
                    "lower_is_better": row.metric.lower_is_better,
                    "medians": row.medians,
                    "best_peer": row.best_peer,
                    "ratio": row.ratio,
                    "ratios": row.ratios,
                }
                for row in self.comparisons()
            ],
        }


def _compare(metric: Metric, medians: dict[str, float]) -> Comparison:
    peers = {name: value for name, value in medians.items() if not is_ours(name)}
    if not peers:
        return Comparison(metric=metric, medians=medians, best_peer=None, ratios={})
    pick = min if metric.lower_is_better else max
    best = pick(peers, key=lambda name: peers[name])
    ours = {name: value for name, value in medians.items() if is_ours(name)}
    ratios = {name: value / peers[best] for name, value in ours.items() if peers[best] > 0}
    return Comparison(metric=metric, medians=medians, best_peer=best, ratios=ratios)


def peers_table(report: PeersReport) -> RenderableType:
    """Median (least-most) per server, and each of ours over the best peer."""
    table = Table(title="Median (least to most) per server; last columns: ours / best peer", title_justify="left")
    ours = [result.name for result in report.results if is_ours(result.name)]
    table.add_column("")
    for result in report.results:
        table.add_column(result.name, justify="right")
    table.add_column("best peer")
    for name in ours:
        table.add_column(f"{name} /", justify="right")
    for row in report.comparisons():
        cells = [_cell(result.values.get(row.metric, [])) for result in report.results]
        ratios = [f"{row.ratios[name]:.2f}" if name in row.ratios else "-" for name in ours]
        table.add_row(row.metric.name, *cells, row.best_peer or "-", *ratios)
    return Group(table, _forms_table(report))


def _forms_table(report: PeersReport) -> Table:
    table = Table(title="How each server was asked", title_justify="left")
    for heading in ("server", "prompts as", "fields of every request"):
        table.add_column(heading)
    for result in report.results:
        fields = ", ".join(f"{name}={value}" for name, value in result.extra.items())
        table.add_row(result.name, result.prompt_form or "-", fields or "-")
    return table


def _cell(values: Sequence[float]) -> str:
    if not values:
        return "-"
    return f"{_number(median(values))} ({_number(min(values))}-{_number(max(values))})"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"
