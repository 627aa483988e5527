"""Which ranks hold which experts of a layer, hot ones more than once, so that the fullest rank computes least. Pure.

An expert's load is shared evenly by the ranks that hold it. Every expert lies on a rank at least, and on none twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from relevo.core.errors import SettingsError

_LEAST_GAIN = 0.05  # of the fullest rank's load, for which experts are moved; arbitrary


@dataclass(frozen=True, slots=True)
class Placement:
    """`ranks[e]`: those that hold expert e, ascending."""

    ranks: tuple[tuple[int, ...], ...]
    num_ranks: int

    def experts_of(self, rank: int) -> tuple[int, ...]:
        return tuple(expert for expert, holders in enumerate(self.ranks) if rank in holders)

    def rank_loads(self, loads: Sequence[float]) -> list[float]:
        """Of each rank, ascending loads first: sums do not depend on how experts are numbered."""
        totals = [0.0] * self.num_ranks
        for expert in sorted(range(len(loads)), key=lambda each: loads[each] / len(self.ranks[each])):
            for rank in self.ranks[expert]:
                totals[rank] += loads[expert] / len(self.ranks[expert])
        return totals

    def fullest(self, loads: Sequence[float]) -> float:
        return max(self.rank_loads(loads))


def in_order(num_experts: int, num_ranks: int) -> Placement:
    """Each once, as many on each rank as may be, in order: what is known of no load."""
    return Placement(tuple((expert * num_ranks // num_experts,) for expert in range(num_experts)), num_ranks)


def check_copies(num_experts: int, num_ranks: int, num_redundant: int) -> None:
    """That every rank can have equally many, and none of them twice. Raises SettingsError."""
    if num_redundant > num_experts * (num_ranks - 1):
        raise SettingsError(
            f"{num_redundant} redundant experts are more than {num_ranks} ranks can hold of {num_experts}, each once; "
            f"choose at most {num_experts * (num_ranks - 1)}"
        )
    if num_redundant and (num_experts + num_redundant) % num_ranks:
        raise SettingsError(
            f"{num_experts} experts and {num_redundant} redundant ones cannot be divided among {num_ranks} ranks; "
            f"choose --num-redundant-experts {-num_experts % num_ranks or num_ranks}, or a multiple of {num_ranks} more"
        )


@dataclass(frozen=True, slots=True)
class ExpertWaits:
    """What the fullest ranks compute of experts, all layers together, by what each would if all were equal: ranks wait
    for the fullest one in every layer."""

    in_order: float  # experts once each, in order
    placed: float  # by their loads, with copies


def expert_waits(layers: Sequence[Sequence[float]], num_ranks: int, num_redundant: int) -> ExpertWaits:
    """`layers`: of each, the loads of its experts."""
    mean = sum(map(sum, layers)) / num_ranks
    before = [(loads, in_order(len(loads), num_ranks)) for loads in layers]
    after = [(loads, place_experts(loads, current, num_redundant)) for loads, current in before]
    waits = [sum(each.fullest(loads) for loads, each in placed) / mean if mean else 1.0 for placed in (before, after)]
    return ExpertWaits(*waits)


def place_experts(
    loads: Sequence[float], current: Placement, num_redundant: int, least_gain: float = _LEAST_GAIN
) -> Placement:
    """`loads`: tokens that passed each expert. With at most so many copies beside the first of each. `current` stays
    unless the fullest rank gains more than `least_gain` of its load; it is what ranks hold now, and may have no copies.
    """
    found = _best(loads, current.num_ranks, num_redundant)
    num_copies = sum(map(len, current.ranks)) - len(loads)
    if num_copies <= num_redundant and current.fullest(loads) * (1 - least_gain) <= found.fullest(loads):
        return current
    return found


def _best(loads: Sequence[float], num_ranks: int, num_redundant: int) -> Placement:
    """No worse than without copies, which a greedy choice alone does not promise."""
    alone = _placed(loads, num_ranks, [1] * len(loads))
    copied = _placed(loads, num_ranks, _num_holders(loads, num_ranks, num_redundant))
    return copied if copied.fullest(loads) < alone.fullest(loads) else alone


def _num_holders(loads: Sequence[float], num_ranks: int, num_redundant: int) -> list[int]:
    """A copy more, one after the other, of what is hottest by then."""
    counts = [1] * len(loads)
    for _ in range(min(num_redundant, len(loads) * (num_ranks - 1))):
        able = [each for each in range(len(loads)) if counts[each] < num_ranks]
        hottest = max(able, key=lambda each: (loads[each] / counts[each], loads[each]))  # by no expert's number
        counts[hottest] += 1
    return counts


def _placed(loads: Sequence[float], num_ranks: int, counts: Sequence[int]) -> Placement:
    """Those of most holders first, since they need room on most ranks; of these the hottest first."""
    order = sorted(range(len(loads)), key=lambda each: (-counts[each], -loads[each]))
    room, totals = [-(-sum(counts) // num_ranks)] * num_ranks, [0.0] * num_ranks
    ranks: dict[int, tuple[int, ...]] = {}
    for place, expert in enumerate(order):
        several = [counts[each] for each in order[place + 1 :] if counts[each] > 1]
        chosen = _chosen(totals, room, counts[expert], several)
        for rank in chosen:
            room[rank] -= 1
            totals[rank] += loads[expert] / counts[expert]
        ranks[expert] = tuple(sorted(chosen))
    return Placement(tuple(ranks[expert] for expert in range(len(loads))), num_ranks)


def _chosen(totals: Sequence[float], room: Sequence[int], count: int, several: Sequence[int]) -> list[int]:
    """The ranks that have least to do; where these leave no room for what is still to be placed, those of most room,
    which always do."""
    free = [rank for rank, left in enumerate(room) if left]
    idle = sorted(free, key=lambda rank: (totals[rank], -room[rank]))[:count]
    if _leaves_room([left - (rank in idle) for rank, left in enumerate(room)], several) and len(idle) == count:
        return idle
    return sorted(free, key=lambda rank: (-room[rank], totals[rank]))[:count]


def _leaves_room(room: Sequence[int], several: Sequence[int]) -> bool:
    """Whether experts of so many holders each, descending, and then any of one, find ranks (Gale and Ryser)."""
    needed = accumulate((*several, 1))
    return all(sum(min(left, k) for left in room) >= each for k, each in enumerate(needed, 1)) or not any(room)
