"""Distributions of many samples, some of which stand for several and some of which never came to an end.

A quantile is told only with ten samples beyond it: the 99th percentile of fifty requests is one request's luck. Samples
that never came (the first token of a rejected request) count as longer than all others, so that leaving the slowest out
makes no result better. Does not know what is measured.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

MIN_SAMPLES_BEYOND = 10  # arbitrary, and common: 1,000 samples for the 99th percentile
QUANTILES = (0.5, 0.9, 0.95, 0.99)
Values = Sequence[float] | npt.NDArray[np.float64]
Weights = Sequence[int] | npt.NDArray[np.int64]


class Samples(NamedTuple):
    """Of one kind of latency, in seconds; `weights`: how often each of them counts, None: once."""

    values_s: Values
    weights: Weights | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """`quantiles` holds a value or the reason why there is none, by name ("p50")."""

    count: int  # samples, those that never came included
    num_missing: int  # that never came
    mean: float | None  # of those that came; None: none did
    max: float | None
    quantiles: dict[str, float | str]

    def value(self, name: str) -> float | None:
        """A quantile by name; None if it cannot be told."""
        told = self.quantiles[name]
        return None if isinstance(told, str) else told

    def to_json(self) -> dict[str, Any]:
        told = {name: value for name, value in self.quantiles.items() if not isinstance(value, str)}
        untold = {name: reason for name, reason in self.quantiles.items() if isinstance(reason, str)}
        return {
            "count": self.count,
            "num_missing": self.num_missing,
            "mean": self.mean,
            **{name: told.get(name) for name in self.quantiles},
            "max": self.max,
            "untold": untold,
        }


def distribution(values: Values, weights: Weights | None = None, num_missing: int = 0) -> Distribution:
    """Of `values`, value i counted `weights[i]` times, and of `num_missing` samples longer than all of them."""
    ordered = np.asarray(values, dtype=np.float64)
    counts = np.ones(len(ordered), dtype=np.int64) if weights is None else np.asarray(weights, dtype=np.int64)
    order = np.argsort(ordered, kind="stable")
    ordered, upto = ordered[order], np.cumsum(counts[order])
    num_known = int(upto[-1]) if len(upto) else 0
    count = num_known + num_missing
    total = float(np.dot(ordered, counts[order])) if num_known else 0.0

    def at_rank(rank: int) -> float:
        return float(ordered[np.searchsorted(upto, rank, side="right")])

    def quantile(q: float) -> float | str:
        if round(count * (1.0 - q), 6) < MIN_SAMPLES_BEYOND:
            return f"needs {math.ceil(round(MIN_SAMPLES_BEYOND / (1.0 - q), 6)):,} samples, there are {count:,}"
        position = q * (count - 1)  # between two samples by linear interpolation, as in telemetry.latency
        below = int(position)
        if math.ceil(position) >= num_known:
            return f"{num_missing:,} of {count:,} samples never came"
        low, high = at_rank(below), at_rank(min(below + 1, num_known - 1))
        return low + (high - low) * (position - below)

    return Distribution(
        count=count,
        num_missing=num_missing,
        mean=total / num_known if num_known else None,
        max=float(ordered[-1]) if num_known else None,
        quantiles={f"p{q * 100:g}": quantile(q) for q in QUANTILES},
    )
