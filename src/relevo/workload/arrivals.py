"""When requests arrive: endless streams of offsets in seconds, at a given mean rate.

Open-loop processes only. A closed loop (a fixed number of clients that wait for their answers) is not an arrival
process: its arrivals depend on the server, so it lives with what drives the server. This module knows no clock;
the caller hands in a seeded generator and adds the offsets to a start time of its own.

The first arrival is at offset 0: a renewal process seen from one of its own arrivals, so that `n` requests span
`n - 1` gaps.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from enum import StrEnum
from itertools import repeat, takewhile


class ArrivalKind(StrEnum):
    POISSON = "poisson"
    CONSTANT = "constant"
    GAMMA = "gamma"


def arrival_offsets(
    kind: ArrivalKind, rate_per_s: float, rng: random.Random, *, burstiness: float = 1.0
) -> Iterator[float]:
    """Endless non-decreasing offsets in seconds, 0 first, with a mean gap of 1/rate_per_s.

    `burstiness` is the shape of the gamma process: the gaps have a coefficient of variation of burstiness ** -0.5, so
    1 is Poisson, less than 1 comes in bursts and more than 1 is more regular. The other processes ignore it.
    Raises ValueError for a rate or a shape that is not positive.
    """
    if rate_per_s <= 0:
        raise ValueError(f"the arrival rate must be above 0 requests per second, got {rate_per_s}")
    if burstiness <= 0:
        raise ValueError(f"burstiness must be above 0, got {burstiness}")
    return _accumulate_offsets(_gaps(kind, rate_per_s, rng, burstiness))


def arrivals_until(offsets: Iterator[float], duration_s: float) -> list[float]:
    """The offsets below `duration_s`."""
    return list(takewhile(lambda offset_s: offset_s < duration_s, offsets))


def _gaps(kind: ArrivalKind, rate_per_s: float, rng: random.Random, burstiness: float) -> Iterator[float]:
    if kind is ArrivalKind.CONSTANT:
        return repeat(1.0 / rate_per_s)
    if kind is ArrivalKind.POISSON:
        return _draws(lambda: rng.expovariate(rate_per_s))
    return _draws(lambda: rng.gammavariate(burstiness, 1.0 / (rate_per_s * burstiness)))


def _draws(draw: Callable[[], float]) -> Iterator[float]:
    while True:
        yield draw()


def _accumulate_offsets(gaps: Iterator[float]) -> Iterator[float]:
    offset_s = 0.0
    while True:
        yield offset_s
        offset_s += next(gaps)
