"""All pairs: a short list of rows in which every two values of every two factors meet at least once.

Greedy: each row starts from a pair that has not been seen and takes, factor by factor, the value that meets most.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from random import Random
from typing import Any

Row = dict[str, Any]
_Cell = tuple[str, int]  # factor, index of its value
_Pair = frozenset[_Cell]


def all_pairs(factors: Mapping[str, Sequence[Any]], allowed: Callable[[Row], bool], rng: Random) -> list[Row]:
    """`allowed` is asked about rows that may lack factors; what it refuses never appears. Deterministic per `rng`."""

    def values(cells: dict[str, int]) -> Row:
        return {name: factors[name][index] for name, index in cells.items()}

    waiting = _possible_pairs(factors, allowed)
    rows: list[Row] = []
    while waiting:
        cells = dict(rng.choice(sorted(map(sorted, waiting))))
        for name in rng.sample(list(factors), len(factors)):
            if name in cells:
                continue
            able = [i for i in range(len(factors[name])) if allowed(values(cells | {name: i}))]
            cells[name] = max(able, key=lambda i: (_num_met(waiting, cells, (name, i)), rng.random()))
        waiting -= {frozenset(pair) for pair in combinations(cells.items(), 2)}
        rows.append(values(cells))
    return rows


def num_missing_pairs(factors: Mapping[str, Sequence[Any]], allowed: Callable[[Row], bool], rows: list[Row]) -> int:
    """Pairs that are allowed and that no row has."""
    waiting = _possible_pairs(factors, allowed)
    for row in rows:
        cells = [(name, factors[name].index(row[name])) for name in factors]
        waiting -= {frozenset(pair) for pair in combinations(cells, 2)}
    return len(waiting)


def _possible_pairs(factors: Mapping[str, Sequence[Any]], allowed: Callable[[Row], bool]) -> set[_Pair]:
    return {
        frozenset(((one, i), (other, j)))
        for one, other in combinations(factors, 2)
        for i, a in enumerate(factors[one])
        for j, b in enumerate(factors[other])
        if allowed({one: a, other: b})
    }


def _num_met(waiting: set[_Pair], cells: dict[str, int], cell: _Cell) -> int:
    return sum(frozenset((cell, known)) in waiting for known in cells.items())
