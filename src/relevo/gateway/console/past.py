"""The last ten minutes as columns, of all gateways together.

Owns what was made of an interval: one that has ended does not change any more, so each is added up once, however often
the history is told. Memory is that of ten minutes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from relevo.gateway.console.intervals import INTERVAL_S, NUM_KEPT, Interval, added_up
from relevo.gateway.console.state import History, ModelHistory
from relevo.telemetry.latency_histogram import LatencyHistogram

QUANTILES = (0.5, 0.9, 0.99)


class Row(NamedTuple):
    """One interval, in the order of the members of `ModelHistory`."""

    ttft_p50_s: float | None
    ttft_p90_s: float | None
    ttft_p99_s: float | None
    itl_p50_s: float | None
    itl_p90_s: float | None
    itl_p99_s: float | None
    hit_fraction: float | None
    num_requests: int
    num_refusals: int
    num_output_tokens: int
    num_queued: int | None


@dataclass(slots=True)
class Past:
    """`latest`: as it was told last."""

    latest: History | None = None
    _rows: dict[tuple[str, int, int], Row] = field(default_factory=dict)  # by model, number, how many were added up

    def history(
        self, reports: Iterable[Mapping[str, Sequence[Interval]]], model_names: Sequence[str], open_number: int
    ) -> History:
        """`reports`: of each gateway, by model. Up to the interval that is under way."""
        numbers = range(open_number - NUM_KEPT, open_number)
        found: dict[str, dict[int, list[Interval]]] = {name: {} for name in ("", *model_names)}
        for report in reports:
            for name, intervals in report.items():
                for interval in intervals:
                    if interval.number in numbers and name in found:
                        found[name].setdefault(interval.number, []).append(interval)
                        found[""].setdefault(interval.number, []).append(interval)
        rows = {
            (name, number, len(by_number.get(number, ()))): by_number.get(number, [])
            for name, by_number in found.items()
            for number in numbers
        }
        self._rows = {key: self._rows.get(key) or _row(added_up(key[1], intervals)) for key, intervals in rows.items()}
        by_name: dict[str, list[Row]] = {name: [] for name in found}
        for (name, _, _), row in self._rows.items():
            by_name[name].append(row)
        self.latest = History(
            interval_s=INTERVAL_S,
            at_unix_s=[number * INTERVAL_S for number in numbers],
            models=tuple(_columns(name, of_model) for name, of_model in by_name.items()),
        )
        return self.latest


def hit_fraction(interval: Interval) -> float | None:
    return round(interval.num_cached_tokens / interval.num_prompt_tokens, 4) if interval.num_prompt_tokens else None


def _columns(name: str, rows: Sequence[Row]) -> ModelHistory:
    return ModelHistory(model=name, **{column: [getattr(row, column) for row in rows] for column in Row._fields})


def _row(interval: Interval) -> Row:
    ttft_p50_s, ttft_p90_s, ttft_p99_s = _rounded(interval.ttft)
    itl_p50_s, itl_p90_s, itl_p99_s = _rounded(interval.itl)
    return Row(
        ttft_p50_s=ttft_p50_s,
        ttft_p90_s=ttft_p90_s,
        ttft_p99_s=ttft_p99_s,
        itl_p50_s=itl_p50_s,
        itl_p90_s=itl_p90_s,
        itl_p99_s=itl_p99_s,
        hit_fraction=hit_fraction(interval),
        num_requests=interval.num_requests,
        num_refusals=interval.num_refusals,
        num_output_tokens=interval.num_output_tokens,
        num_queued=interval.num_queued,
    )


def _rounded(counts: Mapping[int, int]) -> list[float | None]:
    """Four digits: buckets are no finer, and a history is short on the wire."""
    told = LatencyHistogram(dict(counts)).percentiles_s(QUANTILES)
    return [None if value is None else float(f"{value:.4g}") for value in told]
