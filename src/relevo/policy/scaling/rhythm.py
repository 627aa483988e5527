"""How requests come within a window where bursts come and go: so they are taken to go on, not evenly at their mean.

A rise that is still there is no burst but maybe a new level (`demand.rate_of_late`); one that went is expected again.
What chance makes of even arrivals is not taken for bursts, and no part of it is replayed. Pure.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from math import sqrt

SLOT_S = 2.0  # in which arrivals are counted. Arbitrary
_DEVIATIONS = 4.0  # above what chance makes of even arrivals
_FEWEST_SLOTS = 8  # of a window that tells something. Arbitrary
_FEWEST_CALM = 3  # slots after a burst that tell that it went. Arbitrary


@dataclass(frozen=True, slots=True)
class Rhythm:
    """`rates`: of slots of `SLOT_S` that follow each other again and again, as parts of their mean."""

    rates: tuple[float, ...]
    _ends: tuple[float, ...] = field(init=False, repr=False, compare=False)  # of slots, in even time

    def __post_init__(self) -> None:
        object.__setattr__(self, "_ends", tuple(accumulate(rate * SLOT_S for rate in self.rates)))

    def time_of(self, even_s: float) -> float:
        """When that has come which would have come by `even_s` at the mean rate."""
        cycle_s = self._ends[-1]
        cycles, rest_s = divmod(even_s, cycle_s)
        slot = min(bisect_left(self._ends, rest_s), len(self.rates) - 1)
        begin_s = self._ends[slot - 1] if slot else 0.0
        inside_s = (rest_s - begin_s) / self.rates[slot] if self.rates[slot] else 0.0
        return cycles * len(self.rates) * SLOT_S + slot * SLOT_S + inside_s


def rhythm_of(times_s: Sequence[float], begin_s: float, end_s: float) -> Rhythm | None:
    """Of arrivals in that window, in order of time; None: they are even, as far as can be told, or rise."""
    num_slots = int((end_s - begin_s) / SLOT_S)
    if num_slots < _FEWEST_SLOTS:
        return None
    first_s = end_s - num_slots * SLOT_S
    counts = _counts(times_s, first_s, SLOT_S, num_slots)
    mean = sum(counts) / num_slots
    if mean == 0.0:
        return None
    excess = sum((count - mean) ** 2 for count in counts) / num_slots / mean
    if excess <= 1.0 + _DEVIATIONS * sqrt(2.0 / num_slots) or not _has_fallen(counts, mean):
        return None
    kept = sqrt((excess - 1.0) / excess)  # arrivals at these rates are as far from even as those that were seen
    rates = [max(0.0, mean + kept * (count - mean)) for count in counts]
    return Rhythm(tuple(rate * num_slots / sum(rates) for rate in rates))


def _has_fallen(counts: Sequence[int], mean: float) -> bool:
    """Two slots that are a burst, and less than half as much since then."""
    for place in range(len(counts) - 1 - _FEWEST_CALM):
        both, since = counts[place] + counts[place + 1], counts[place + 2 :]
        if both > 2.0 * mean + _DEVIATIONS * sqrt(2.0 * mean) and 4.0 * sum(since) < both * len(since):
            return True
    return False


def _counts(times_s: Sequence[float], first_s: float, slot_s: float, num_slots: int) -> list[int]:
    counts = [0] * num_slots
    for at_s in times_s:
        slot = int((at_s - first_s) / slot_s)
        if at_s >= first_s and slot < num_slots:
            counts[slot] += 1
    return counts
