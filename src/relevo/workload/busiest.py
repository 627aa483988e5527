"""Which hour of a workload was the busiest: what a capacity is for. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

_S_PER_HOUR = 3600.0


def busiest_hour(times_s: Sequence[float], tokens: Sequence[int]) -> tuple[int, list[int]]:
    """By tokens, in whole hours before the last request; and the places of its requests. `times_s` ascend."""
    hours = [int((times_s[-1] - at_s) / _S_PER_HOUR) for at_s in times_s]
    by_hour: Counter[int] = Counter()
    for hour, number in zip(hours, tokens, strict=True):
        by_hour[hour] += number
    busiest = min(by_hour, key=lambda ago: (-by_hour[ago], ago))
    return busiest, [place for place, hour in enumerate(hours) if hour == busiest]
