"""A distribution of durations in bounded memory: counts by bucket, each bucket at most 1/64 of its values wide.

Percentiles are those of `telemetry.latency.percentile` within 0.8 %, whatever was counted; two histograms add up to
that of both. Integers only, so that counting costs little. Does not know what is measured, nor when.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

_PART_BITS = 6  # of a power of two: 64 buckets each
_LEADING_BITS = _PART_BITS + 1  # as many as tell these apart; smaller values have a bucket each
_LARGEST_NS = 2**50  # thirteen days; longer ones count as this


@dataclass(slots=True)
class LatencyHistogram:
    """`counts`: of each bucket that has any, by its index; at most 2,944 of them."""

    counts: dict[int, int] = field(default_factory=dict)

    def add(self, duration_ns: int, num: int = 1) -> None:
        if not 0 <= duration_ns <= _LARGEST_NS:
            duration_ns = 0 if duration_ns < 0 else _LARGEST_NS
        shift = duration_ns.bit_length() - _LEADING_BITS
        index = duration_ns if shift <= 0 else (shift << _PART_BITS) + (duration_ns >> shift)
        counts = self.counts
        counts[index] = counts.get(index, 0) + num

    def merge(self, counts: Mapping[int, int]) -> None:
        own = self.counts
        for index, num in counts.items():
            own[index] = own.get(index, 0) + num

    @property
    def num_samples(self) -> int:
        return sum(self.counts.values())

    def percentiles_s(self, quantiles: Iterable[float]) -> list[float | None]:
        """Seconds, interpolated as in `telemetry.latency.percentile`; None without samples. Each 0 <= q <= 1."""
        ordered = sorted(self.counts.items())
        num_samples = sum(num for _, num in ordered)
        if not num_samples:
            return [None for _ in quantiles]
        return [_percentile_s(ordered, num_samples, q) for q in quantiles]


def _percentile_s(ordered: list[tuple[int, int]], num_samples: int, q: float) -> float:
    position = q * (num_samples - 1)
    below = int(position)
    above = min(below + 1, num_samples - 1)
    low, high = _at_rank(ordered, below), _at_rank(ordered, above)
    return (low + (high - low) * (position - below)) / 1e9


def _at_rank(ordered: list[tuple[int, int]], rank: int) -> float:
    """Nanoseconds: the middle of the bucket in which the sample of this rank is."""
    num_before = 0
    for index, num in ordered:
        num_before += num
        if rank < num_before:
            return _middle_ns(index)
    raise AssertionError("a rank is below the number of samples")


def _middle_ns(index: int) -> float:
    shift = (index >> _PART_BITS) - 1
    if shift <= 0:
        return float(index)
    least = ((index & ((1 << _PART_BITS) - 1)) + (1 << _PART_BITS)) << shift
    return least + ((1 << shift) - 1) / 2
