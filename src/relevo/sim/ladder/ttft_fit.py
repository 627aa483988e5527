"""Fits which shares of its terms a time to first token is made of: non-negative least squares of the relative error.

Rows that are wrong pull with bounded force (Huber 1964). Shares belong to a manner of serving (engine, split or not,
lengths alike or not); one that was never seen gets those of the manners nearest to it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from relevo.policy.perf.linear import solve
from relevo.sim.ladder.silicon_latencies import TtftTerms

_NUM_ROUNDS = 12
_OUTLIER = 0.15  # relative residual from which a row pulls with constant force. Arbitrary
_FEWEST = 10  # rows that shares are fitted to. Arbitrary
_RIDGE = 1e-4

Manner = tuple[str, bool, bool]
Shares = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class SeenTtft:
    manner: Manner
    terms: TtftTerms
    measured_s: float


class TtftShares:
    """Of every manner, from the rows that were seen."""

    def __init__(self, seen: Sequence[SeenTtft]) -> None:
        self._seen = seen
        self._fitted: dict[Manner, Shares] = {}

    def seconds(self, manner: Manner, terms: TtftTerms) -> float:
        if manner not in self._fitted:
            self._fitted[manner] = fit_shares(self._nearest(manner))
        return sum(share * term for share, term in zip(self._fitted[manner], terms, strict=True))

    def _nearest(self, manner: Manner) -> list[SeenTtft]:
        """Of the same manner; else split alike on another engine, or not split on this one; else all."""
        engine, is_split, is_fixed = manner
        choices: tuple[Callable[[Manner], bool], ...] = (
            lambda m: m == manner,
            lambda m: m[1:] == (is_split, is_fixed),
            lambda m: m[1] == is_split,
            lambda m: m[0] == engine and m[2] == is_fixed,
            lambda m: m[2] == is_fixed,
        )
        for same in choices:
            rows = [row for row in self._seen if same(row.manner)]
            if len(rows) >= _FEWEST:
                return rows
        return list(self._seen)


def fit_shares(rows: Sequence[SeenTtft]) -> Shares:
    weights = [1.0 / row.measured_s for row in rows]
    shares: Shares = (0.0,) * len(TtftTerms._fields)
    for _ in range(_NUM_ROUNDS):
        shares = _non_negative(rows, weights)
        for index, row in enumerate(rows):
            predicted_s = sum(share * term for share, term in zip(shares, row.terms, strict=True))
            off = abs(predicted_s / row.measured_s - 1.0)
            weights[index] = (1.0 if off <= _OUTLIER else (_OUTLIER / off) ** 0.5) / row.measured_s
    return shares


def _non_negative(rows: Sequence[SeenTtft], weights: Sequence[float]) -> Shares:
    """By leaving out the most negative share until there is none."""
    size = len(TtftTerms._fields)
    kept = list(range(size))
    scaled = [([term * w for term in row.terms], row.measured_s * w) for row, w in zip(rows, weights, strict=True)]
    while kept:
        matrix = [[sum(x[i] * x[j] for x, _ in scaled) for j in kept] for i in kept]
        for position in range(len(kept)):
            matrix[position][position] *= 1.0 + _RIDGE
        solution = solve(matrix, [sum(x[i] * y for x, y in scaled) for i in kept])
        if solution is None:
            kept.pop()
            continue
        worst = min(range(len(kept)), key=lambda position: solution[position])
        if solution[worst] >= 0.0:
            found = dict(zip(kept, solution, strict=True))
            return tuple(found.get(i, 0.0) for i in range(size))
        kept.pop(worst)
    return (0.0,) * size
