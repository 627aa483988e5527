"""Which numbers of workers are enough: these keep the targets, and the others still do while the spare ones are away.

`search` asks for outlooks in the order in which they matter, and for no more of them than a decision needs. Pure; who
answers hands that in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from relevo.policy.scaling.mode_outlook import ModeOutlook


@dataclass(frozen=True, slots=True, kw_only=True)
class CountLimits:
    """All arbitrary but for what the operator sets."""

    least: int = 1  # 0: none where nothing comes, so the first request waits for a start
    most: int = 1
    goal: float = 0.95  # of requests, that have to meet the targets
    spare: int = 0  # workers that may be away while the targets are kept
    kept: float = 0.9  # of requests, that have to meet the targets then: those are of the 90th percentile
    headroom: float = 1.15  # times the expected load, at which both have to be met
    tick_s: float = 5.0
    min_requests: int = 20  # in the window, for lengths to mean anything
    down_after_s: float = 60.0  # that fewer have to be enough
    reach_s: float = 3600.0  # farther no forecast looks
    late_factor: float = 3.0  # times its start time, after which an order is given up
    season_ticks: int = 17_280  # a day

    def __post_init__(self) -> None:
        """Raises ValueError for what no number can keep."""
        if not 0 <= self.least <= self.most or self.most < 1:
            raise ValueError(
                f"{self.least} to {self.most} workers: no number keeps that; at least 0, at most 1 or more"
            )
        if not 0 <= self.spare < self.most:
            raise ValueError(f"{self.spare} of at most {self.most} workers are to be spare; at least 0, and not all")

    @property
    def fewest_at_work(self) -> int:
        """Where something comes."""
        return max(self.least, 1 + self.spare)


def is_enough(number: int, outlooks: Mapping[int, ModeOutlook], limits: CountLimits, *, stays: bool = False) -> bool:
    """`stays`: it is less than there are, which has to last: half as many requests may miss the targets."""
    part = 0.5 if stays else 1.0

    def meets(num_workers: int, goal: float) -> bool:
        outlook = outlooks.get(num_workers)
        return outlook is not None and 1.0 - outlook.attained <= part * (1.0 - goal) + 1e-9

    return meets(number, limits.goal) and (not limits.spare or meets(number - limits.spare, limits.kept))


def fewest_enough(total: int, outlooks: Mapping[int, ModeOutlook], limits: CountLimits) -> int:
    """Of `total` and less, going down as far as all are."""
    while total > limits.fewest_at_work and is_enough(total - 1, outlooks, limits, stays=True):
        total -= 1
    return total


def search(total: int, limits: CountLimits, ttft_s: float, ask: Callable[[int], ModeOutlook]) -> dict[int, ModeOutlook]:
    """Outlooks by number: what `CountPlanner.decide` needs where there are `total`. `ask`: of the best mode of so many
    workers."""
    found = {total: ask(total)}

    def known(number: int, stays: bool = False) -> bool:
        for each in (number, number - limits.spare):
            if each >= 1 and each not in found:
                found[each] = ask(each)
        return is_enough(number, found, limits, stays=stays)

    if known(total):
        while total > limits.fewest_at_work and known(total - 1, stays=True):
            total -= 1
        return found
    if total >= limits.most:
        if found[total].attained < limits.goal:
            found[total + 1] = ask(total + 1)  # to be told of
        return found
    while total < limits.most and found[total].floor_ttft_s <= ttft_s and not known(total):
        total += 1
        found.setdefault(total, ask(total))
    return found
