"""From values to places along an axis, and the round values that are written beside it. Pure.

Values that are no finite numbers are refused: a plot that leaves them out without a word would be a wrong one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

_MOST_TICKS = 7  # arbitrary: what fits beside each other on a telephone
_ROUND = (1.0, 2.0, 2.5, 5.0, 10.0)


@dataclass(frozen=True, slots=True)
class Scale:
    """`low` is drawn at `from_px`, `high` at `to_px`; `ticks` are between them."""

    low: float
    high: float
    from_px: float
    to_px: float
    ticks: tuple[float, ...]
    is_log: bool = False

    def at(self, value: float) -> float:
        """Pixels; outside for what is outside. Raises ValueError for what has no place: NaN, or 0 on a log scale."""
        if not math.isfinite(value) or (self.is_log and value <= 0):
            raise ValueError(f"{value} has no place on {'a log' if self.is_log else 'an'} axis")
        if self.is_log:
            share = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return self.from_px + share * (self.to_px - self.from_px)


_LEAST = 1e-300  # parts of what is smaller are no numbers


def linear_scale(values: Iterable[float], from_px: float, to_px: float, *, from_zero: bool = False) -> Scale:
    """Around all `values`, from one round value to another. Raises ValueError for none, or for no finite numbers."""
    low, high = _bounds(values)
    if from_zero:
        low, high = min(0.0, low), max(0.0, high)
    if max(abs(low), abs(high)) < _LEAST:
        low, high = 0.0, 1.0
    if low == high:
        low, high = (low - abs(low) / 2, high + abs(high) / 2) if low else (0.0, 1.0)
    step = _round_step((high - low) / _MOST_TICKS)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    ticks = tuple(_exact(number * step) for number in range(first, last + 1))
    return Scale(ticks[0], ticks[-1], from_px, to_px, ticks)


def log_scale(values: Iterable[float], from_px: float, to_px: float) -> Scale:
    """As `linear_scale`, of values above 0."""
    low, high = _bounds(values)
    if low <= 0:
        raise ValueError(f"{low} has no place on a log axis")
    if high / low < 1.2:
        low, high = low / 1.5, high * 1.5
    first, last = _round_below(low), _round_above(high)
    inner = _between(first, last)
    return Scale(first, last, from_px, to_px, tuple(inner), is_log=True)


def tick_text(value: float) -> str:
    """0.05, 20, 15k, 3M: short, and never 1e+06."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1e3 if letter == 'k' else size):g}{letter}"
    return f"{value:.4f}".rstrip("0").rstrip(".") if 1e-4 <= abs(value) < 1 else f"{value:g}"


def _bounds(values: Iterable[float]) -> tuple[float, float]:
    known = list(values)
    if not known:
        raise ValueError("an axis needs at least one value")
    wrong = [value for value in known if not math.isfinite(value)]
    if wrong:
        raise ValueError(f"{wrong[0]} has no place on an axis")
    return min(known), max(known)


def _round_step(about: float) -> float:
    power = 10.0 ** math.floor(math.log10(about))
    return _exact(next(part for part in _ROUND if part * power >= about * (1 - 1e-9)) * power)


def _round_below(value: float) -> float:
    power = 10.0 ** math.floor(math.log10(value) + 1e-12)
    return _exact(max(part * power for part in (1, 2, 5) if part * power <= value * (1 + 1e-9)))


def _round_above(value: float) -> float:
    power = 10.0 ** math.floor(math.log10(value) - 1e-12)
    return _exact(min(part * power for part in (1, 2, 5, 10) if part * power >= value * (1 - 1e-9)))


def _between(first: float, last: float) -> list[float]:
    """Powers of ten and what lies between them, as far as there is room; every second or third one if there is none."""
    powers = range(math.floor(math.log10(first)), math.ceil(math.log10(last)) + 1)
    inside: list[float] = []
    for parts in ((1, 2, 5), (1, 3), (1,)):
        found = [_exact(part * 10.0**power) for power in powers for part in parts]
        inside = [value for value in found if first * (1 - 1e-9) <= value <= last * (1 + 1e-9)]
        if len(inside) <= _MOST_TICKS:
            return inside
    return inside[:: -(-len(inside) // _MOST_TICKS)]


def _exact(value: float) -> float:
    return float(f"{value:.12g}")
