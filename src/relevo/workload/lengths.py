"""How long prompts and answers are, in tokens. Pure; the caller hands in a seeded generator.

`parse_lengths` reads what a person types: `512` is a fixed length, `128-1024` is uniform over both ends included,
`lognormal:600,2.0` has a median of 600 tokens and a spread factor of 2.0 (one sigma is a factor of two).
"""

from __future__ import annotations

import math
import random
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

LONGEST = 2**24  # tokens: more than any model takes. Arbitrary
WIDEST = 1000.0  # spread factor; arbitrary


class Lengths(Protocol):
    """A distribution of token counts, each at least 1."""

    def draw(self, rng: random.Random) -> int: ...


@dataclass(frozen=True, slots=True)
class FixedLength:
    num_tokens: int

    def draw(self, rng: random.Random) -> int:
        return self.num_tokens


@dataclass(frozen=True, slots=True)
class UniformLengths:
    """Every length from `low` to `high`, both included, is equally likely."""

    low: int
    high: int

    def draw(self, rng: random.Random) -> int:
        return rng.randint(self.low, self.high)


@dataclass(frozen=True, slots=True)
class LognormalLengths:
    """Long-tailed: half of the draws lie below `median`, about 84 % below `median * spread`."""

    median: float
    spread: float  # at least 1

    def draw(self, rng: random.Random) -> int:
        return min(LONGEST, max(1, round(self.median * math.exp(rng.gauss(0.0, math.log(self.spread))))))


@dataclass(frozen=True, slots=True)
class WeightedLengths:
    """Measured lengths with the frequencies they were measured with."""

    lengths: Sequence[int]
    cumulative: Sequence[float]  # of the frequencies; need not end at 1

    def draw(self, rng: random.Random) -> int:
        return rng.choices(self.lengths, cum_weights=self.cumulative)[0]


@dataclass(frozen=True, slots=True)
class CdfLengths:
    """A fraction `fractions[i]` is at most `lengths[i]`; even between two of them, and from 0 to the first."""

    lengths: Sequence[int]  # ascending
    fractions: Sequence[float]  # ascending to 1

    def draw(self, rng: random.Random) -> int:
        fraction = rng.random()
        above = bisect_left(self.fractions, fraction)
        low, low_fraction = (self.lengths[above - 1], self.fractions[above - 1]) if above else (0, 0.0)
        width = self.fractions[above] - low_fraction
        share = (fraction - low_fraction) / width if width > 0 else 1.0
        return max(1, round(low + share * (self.lengths[above] - low)))


def parse_lengths(text: str) -> Lengths:
    """Read `N`, `LOW-HIGH` or `lognormal:MEDIAN,SPREAD`. Raises ValueError that says what to write instead."""
    try:
        if text.startswith("lognormal:"):
            median, spread = (float(part) for part in text.removeprefix("lognormal:").split(","))
            if not (1 <= median <= LONGEST and 1 <= spread <= WIDEST):
                raise ValueError
            return LognormalLengths(median, spread)
        low, dash, high = text.partition("-")
        if not dash:
            return FixedLength(_at_least_one(low))
        uniform = UniformLengths(_at_least_one(low), _at_least_one(high))
        if uniform.low > uniform.high:
            raise ValueError
    except ValueError:
        raise ValueError(
            f"{text!r} is not a length in tokens; write 512, 128-1024 (low first) or lognormal:600,2.0,"
            f" at most {LONGEST:,}"
        ) from None
    return uniform


def _at_least_one(text: str) -> int:
    num_tokens = int(text)
    if not 1 <= num_tokens <= LONGEST:
        raise ValueError
    return num_tokens
