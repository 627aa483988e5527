"""Whether traffic has become of another kind of late, by its prompts' lengths: what came before tells nothing then.

A rank test at every position at once (Mann and Whitney 1947, as for a change point), so it does not matter how lengths
are distributed. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from math import ceil, log, sqrt

FEWEST = 8  # requests of a kind, to be one. Arbitrary
_DEVIATIONS = 4.0  # from what chance makes of one kind, at the position where most. Arbitrary
_MOST = 512  # sizes that are looked at; of more, every so many. Arbitrary


def new_kind_from(sizes: Sequence[float]) -> int:
    """The position from which on `sizes`, in order of time, are of another kind than those before; 0: all are alike."""
    step = ceil(len(sizes) / _MOST)
    looked_at = sizes[::step] if step > 1 else sizes
    number = len(looked_at)
    if number < 2 * FEWEST:
        return 0
    if max(_deviations(_ranks(looked_at), (number + 1) / 12 * number)) <= _DEVIATIONS:
        return 0
    logarithms = [log(1.0 + size) for size in looked_at]
    found = _deviations(logarithms, 1.0)  # sharper where kinds lie apart; how far is not asked any more
    return (FEWEST + max(range(len(found)), key=lambda place: found[place])) * step


def _deviations(values: Sequence[float], variance: float) -> list[float]:
    """By position, from that of the first kind that has enough: of the sum of what is before it from what it would be
    if all were alike, in standard deviations."""
    number, sums = len(values), list(accumulate(values))
    places = range(FEWEST, number - FEWEST + 1)
    return [
        abs(sums[place - 1] - place * sums[-1] / number) / sqrt(place * (number - place) * variance / number)
        for place in places
    ]


def _ranks(sizes: Sequence[float]) -> list[float]:
    """From 1; equal ones share the mean of theirs."""
    order = sorted(range(len(sizes)), key=lambda place: sizes[place])
    ranks, begin = [0.0] * len(sizes), 0
    while begin < len(order):
        end = begin
        while end < len(order) and sizes[order[end]] == sizes[order[begin]]:
            end += 1
        for place in order[begin:end]:
            ranks[place] = (begin + 1 + end) / 2
        begin = end
    return ranks
