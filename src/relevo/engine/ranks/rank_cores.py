"""On which of its worker's cores a rank computes.

While one stage computes at a time, each has all cores. While several do, with pieces of a step in the pipe, they
divide them. Ranks of a group always compute at the same time, and divide what their stage has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

_MOST_IDLE = 1 / 8  # of the cores, where stages cannot divide them evenly; arbitrary


class RankCores:
    def __init__(
        self,
        cores: Sequence[int],
        rank: int,
        group_size: int,
        num_ranks: int,
        compute_on: Callable[[Sequence[int]], bool],
    ) -> None:
        """`cores`: of the worker, undivided so far. `compute_on`: this process computes on these from now on; False: it
        does not compute on cores."""
        self._cores, self._rank, self._group_size, self._num_ranks = tuple(cores), rank, group_size, num_ranks
        self._compute_on = compute_on
        self._are_divided = False

    def use(self, cores: Sequence[int]) -> bool:
        """The worker has these from now on. False: the rank does not compute on cores."""
        self._cores, self._are_divided = tuple(cores), False
        return self._compute_on(self._own(are_divided=False))

    def divide(self, are_divided: bool) -> None:
        """Among the stages, or not, from now on."""
        if are_divided != self._are_divided:
            self._compute_on(self._own(are_divided))
            self._are_divided = are_divided

    def can_be_divided(self) -> bool:
        """Hardly any would stay idle."""
        used = len(self._cores) // self._num_ranks * self._num_ranks
        return used > 0 and len(self._cores) - used <= _MOST_IDLE * len(self._cores)

    def _own(self, are_divided: bool) -> Sequence[int]:
        if are_divided:
            return cores_of_rank(self._cores, self._rank, self._num_ranks)
        return cores_of_rank(self._cores, self._rank % self._group_size, self._group_size)


def cores_of_rank(cores: Sequence[int], rank: int, size: int) -> Sequence[int]:
    """Of one of so many that compute at the same time: as many for each, since a sum waits for the slowest. What is
    left over stays idle; with fewer cores than ranks some share one."""
    each = max(1, len(cores) // size)
    first = rank * each % len(cores)
    return cores[first : first + each]
