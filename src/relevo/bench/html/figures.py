"""What can be drawn: curves over two axes, medians with their range, bars. Plain data; `svg` draws it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from relevo.telemetry.distribution import Samples
from relevo.telemetry.latency import LATENCY_LABELS

MOST_POINTS = 400  # of a curve; more cannot be told apart on a screen. Arbitrary
_TAIL = (0.99, 0.995, 0.999, 0.9995, 0.9999)

Point = tuple[float, float]


class Look(StrEnum):
    LINE = "line"
    STEPS = "steps"  # up to each point's value at its place
    DOTS = "dots"


@dataclass(frozen=True, slots=True)
class Curve:
    name: str
    points: Sequence[Point]
    look: Look = Look.LINE


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    label: str
    is_log: bool = False
    from_zero: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """`moments`: places on the x axis where something happened, and what."""

    title: str
    x: Axis
    y: Axis
    curves: Sequence[Curve]
    moments: Sequence[tuple[float, str]] = ()
    note: str = ""


@dataclass(frozen=True, slots=True)
class Range:
    """A value (a median, if nothing else is said) between the least and the most that was seen."""

    name: str
    value: float
    least: float
    most: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranges:
    """`reference`: a value that the others are read against."""

    title: str
    axis: Axis
    rows: Sequence[Range]
    reference: float | None = None
    unit: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Bar:
    """Its parts lie one after the other, by name."""

    name: str
    parts: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bars:
    title: str
    axis: Axis
    rows: Sequence[Bar]
    unit: str = ""
    note: str = ""


Figure = Plot | Ranges | Bars


def latency_curves(
    runs: Mapping[str, Mapping[str, Samples]], limits_s: Mapping[str, float | None] | None = None
) -> list[Plot]:
    """Cumulative distributions: a plot per kind of latency, a curve per run. `runs`: by name, then by the keys of
    `LATENCY_LABELS`; a kind that no run has is left out. `limits_s`: of an objective, by the same keys."""
    kinds = [key for key in LATENCY_LABELS if any(len(samples[key].values_s) for samples in runs.values())]
    plots = []
    for key in kinds:
        plot = cumulative(LATENCY_LABELS[key], {name: samples[key] for name, samples in runs.items()})
        limit_s = (limits_s or {}).get(key)
        if limit_s and plot.curves:
            limit = f"{limit_s * 1e3:g} ms, the objective"
            plot = replace(plot, moments=[(limit_s * 1e3, limit)], note=f"The dashed line: {limit}.")
        plots.append(plot)
    return plots


def cumulative(title: str, samples: Mapping[str, Samples]) -> Plot:
    """The share of samples at most so long. Milliseconds, on a log axis."""
    curves = [Curve(name, cumulative_points(of_run), Look.STEPS) for name, of_run in samples.items()]
    return Plot(
        title=title,
        x=Axis(label="ms", is_log=True),
        y=Axis(label="share of samples at most so long", from_zero=True),
        curves=[curve for curve in curves if curve.points],
    )


def cumulative_points(samples: Samples) -> list[Point]:
    """(milliseconds, share), ascending; few enough to draw, the slow end in detail. Zeros count and are not drawn."""
    values = np.asarray(samples.values_s, dtype=np.float64) * 1e3
    if not len(values):
        return []
    weights = np.ones(len(values)) if samples.weights is None else np.asarray(samples.weights, dtype=np.float64)
    order = np.argsort(values, kind="stable")
    values, shares = values[order], np.cumsum(weights[order])
    shares /= shares[-1]
    if len(values) > MOST_POINTS:
        wanted = np.sort(np.concatenate([np.linspace(0.0, 1.0, MOST_POINTS), _TAIL]))
        kept = np.unique(np.minimum(np.searchsorted(shares, wanted), len(values) - 1))
        values, shares = values[kept], shares[kept]
    return [(float(value), float(share)) for value, share in zip(values, shares, strict=True) if value > 0]


def over_time(points: Sequence[Point], quantiles: Sequence[float] = (0.5, 0.9), num_parts: int = 40) -> list[Curve]:
    """Quantiles of what lies in each equal part of the time, at its middle; and the points, if there are few."""
    if not points:
        return []
    ordered = sorted(points)
    times, values = np.array(ordered).T
    span = float(times[-1] - times[0])
    num_parts = max(1, min(num_parts, len(points) // 8))
    shares = (times - times[0]) / span if span else np.zeros(len(times))
    part = np.minimum((shares * num_parts).astype(int), num_parts - 1)
    curves = []
    for q in quantiles:
        found = [(float(times[0]) + span * (i + 0.5) / num_parts, values[part == i]) for i in range(num_parts)]
        line = [(at, float(np.quantile(inside, q))) for at, inside in found if len(inside)]
        curves.append(Curve(f"p{q * 100:g}", line))
    dots = [Curve("each", ordered, Look.DOTS)] if len(points) <= 3 * MOST_POINTS else []
    return [*dots, *curves]
