"""Collectives over links between every two ranks.

Owns the order in which pairs of ranks speak: all walk through the same list of pairs, and in a pair the lower rank
sends first, so that no two ranks ever wait for each other to read. Groups are small (the ranks of one worker on one
box), so every rank has all parts and adds them itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from relevo.engine.ranks.collectives import Array, Float32Array, RankLost
from relevo.engine.ranks.links import Link, LinkClosed, LocalLink


class PairwiseCollectives:
    """Implements engine.ranks.collectives.Collectives."""

    def __init__(self, rank: int, links: Mapping[int, Link]) -> None:
        """`links`: to every other rank."""
        self.rank = rank
        self.size = len(links) + 1
        self._links = dict(links)

    @classmethod
    def local(cls, size: int) -> list[PairwiseCollectives]:
        """For so many threads of one process."""
        links: list[dict[int, Link]] = [{} for _ in range(size)]
        for low, high in pairs(size):
            links[low][high], links[high][low] = LocalLink.pair()
        return [cls(rank, each) for rank, each in enumerate(links)]

    def send(self, target: int, arrays: Sequence[Array]) -> None:
        try:
            self._links[target].send(arrays)
        except LinkClosed:
            raise RankLost(target) from None

    def receive(self, source: int) -> list[Array]:
        try:
            return self._links[source].receive()
        except LinkClosed:
            raise RankLost(source) from None

    def broadcast(self, source: int, arrays: Sequence[Array]) -> list[Array]:
        if self.rank != source:
            return self.receive(source)
        for target in self._links:
            self.send(target, arrays)
        return [array.copy() for array in arrays]

    def all_gather(self, array: Array) -> list[Array]:
        gathered = {self.rank: array.copy()}
        for other in self._partners():
            if self.rank < other:
                self.send(other, [array])
            gathered[other] = self.receive(other)[0]
            if self.rank > other:
                self.send(other, [array])
        return [gathered[rank] for rank in range(self.size)]

    def all_reduce(self, array: Float32Array) -> None:
        array[...] = tree_sum(self.all_gather(array))

    def close(self) -> None:
        for link in self._links.values():
            link.close()

    def _partners(self) -> Iterable[int]:
        """In the order in which all ranks walk through pairs."""
        return (low if high == self.rank else high for low, high in pairs(self.size) if self.rank in (low, high))


def pairs(size: int) -> list[tuple[int, int]]:
    return [(low, high) for low in range(size) for high in range(low + 1, size)]


def tree_sum(parts: Sequence[Float32Array]) -> Float32Array:
    """Neighbours first; what has no neighbour moves up as it is."""
    level = list(parts)
    while len(level) > 1:
        level = [
            np.add(level[place], level[place + 1]) if place + 1 < len(level) else level[place]
            for place in range(0, len(level), 2)
        ]
    return level[0]
