"""From first candidates to the cheapest one that holds, where asking whether one holds is dear.

Starts at what the screen chose: while a candidate holds, one worker less is tried; while it does not, the stage that
is short gets one more. Every candidate that was asked about is remembered with what was answered. Pure: `judge`
simulates, or looks it up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from relevo.core.role import Role
from relevo.policy.scaling.candidates import Candidate
from relevo.policy.scaling.inventory import Holding


@dataclass(frozen=True, slots=True)
class Verdict:
    """`short`: the role that needs more, where it does not hold."""

    holds: bool
    short: Role | None = None


Judge = Callable[[Candidate], Verdict]


@dataclass(frozen=True, slots=True, kw_only=True)
class RefineLimits:
    """Arbitrary: what a minute of simulations allows."""

    max_growth: int = 4  # workers more than the screen thought
    max_judged: int = 7  # candidates of one start


def refine(
    start: Candidate, holdings: Sequence[Holding], judge: Judge, limits: RefineLimits
) -> dict[Candidate, Verdict]:
    """What was judged on the way, in that order."""
    seen: dict[Candidate, Verdict] = {}

    def asked(candidate: Candidate) -> Verdict:
        if candidate not in seen:
            seen[candidate] = judge(candidate)
        return seen[candidate]

    current: Candidate | None = start
    for _ in range(limits.max_growth):
        if current is None or asked(current).holds:
            break
        grown = current.with_workers(seen[current].short or current.stages[0].role, 1)
        current = grown if grown is not None and grown.fits(holdings) else None
    if current is None or not asked(current).holds:
        return seen
    is_smaller = True
    while is_smaller and len(seen) < limits.max_judged:
        is_smaller = False
        for smaller in _smaller(current):
            if len(seen) < limits.max_judged and smaller not in seen and asked(smaller).holds:
                current, is_smaller = smaller, True
                break
    return seen


def cheapest(seen: dict[Candidate, Verdict]) -> Candidate | None:
    """Of those that hold; with equal cost the one that was judged first."""
    return min((c for c, verdict in seen.items() if verdict.holds), key=lambda c: c.weight, default=None)


def _smaller(candidate: Candidate) -> list[Candidate]:
    """One worker less, of the dearer stage first."""
    by_cost = sorted(candidate.stages, key=lambda s: -Candidate((s,)).weight / s.num_workers)
    found = (candidate.with_workers(stage.role, -1) for stage in by_cost)
    return [smaller for smaller in found if smaller is not None]
