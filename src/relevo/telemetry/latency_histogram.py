"""A distribution of durations in bounded memory: counts by bucket, each bucket at most 1/64 of its values wide.

Percentiles are those of `telemetry.latency.percentile` within 0.8 %, whatever was counted; two histograms add up to
that of both. Integers only, so that counting costs little. Does not know what is measured, nor when.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

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
        if not self.counts:
            return [None for _ in quantiles]
        buckets = sorted(self.counts)
        upto = list(accumulate(self.counts[index] for index in buckets))
        return [_percentile_s(buckets, upto, q) for q in quantiles]


def _percentile_s(buckets: Sequence[int], upto: Sequence[int], q: float) -> float:
    """`upto`: samples up to each bucket, its own included."""
    num_samples = upto[-1]
    position = q * (num_samples - 1)
    below = int(position)
    above = min(below + 1, num_samples - 1)
    low, high = (_middle_ns(buckets[bisect_right(upto, rank)]) for rank in (below, above))
    return (low + (high - low) * (position - below)) / 1e9


def _middle_ns(index: int) -> float:
    shift = (index >> _PART_BITS) - 1
    if shift <= 0:
        return float(index)
    least = ((index & ((1 << _PART_BITS) - 1)) + (1 << _PART_BITS)) << shift
    return least + ((1 << shift) - 1) / 2
