"""Which candidates of a comparison by simulation may be left out already, and when the rest is decided. Pure.

All candidates meet the same requests, so two of them are compared request by request: what is hard for both says
nothing, and few requests tell two apart that differ much. Source: Jamieson and Talwalkar, Non-stochastic Best Arm
Identification and Hyperparameter Optimization, 2016 (successive halving); the test is a paired one.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Generic, TypeVar

HEATS = (0.25, 0.5, 1.0)  # parts of the requests after which candidates may be left out. Arbitrary
_DEVIATIONS = 3.0  # that are more than chance; requests of one queue are alike, so they count for less than they are
ENOUGH = 0.95  # part of requests that meet the targets, above which chance is more than what is to be gained. Arbitrary

Candidate = TypeVar("Candidate", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Lead:
    """Of one candidate over another: the part of requests that only it serves well, less that which only the other
    does, and by how much that may be off by chance."""

    mean: float
    chance: float

    @classmethod
    def of(cls, one: Sequence[bool], other: Sequence[bool]) -> Lead:
        number = min(len(one), len(other))
        if not number:
            return cls(0.0, 1.0)
        differences = [mine - theirs for mine, theirs in zip(one, other, strict=False)]
        mean = sum(differences) / number
        variance = sum((each - mean) ** 2 for each in differences) / number
        return cls(mean, _DEVIATIONS * sqrt(variance / number + 1.0 / number**2))  # as if one more differed

    @property
    def is_clear(self) -> bool:
        return self.mean > self.chance


@dataclass(frozen=True, slots=True)
class Race(Generic[Candidate]):
    """`met[candidate]`: of each request, in order, whether the targets were met. `present`: with which all others are
    compared in the end; it stays. `wide`: a lead over it that needs no more requests; `least`: one that is too small to
    matter."""

    met: Mapping[Candidate, Sequence[bool]]
    present: Candidate
    wide: float
    least: float

    @property
    def best(self) -> Candidate:
        return max(self.met, key=self._part)

    @property
    def still_in(self) -> tuple[Candidate, ...]:
        """Those that the best one does not beat by more than chance, and the present one."""
        best = self.best
        return tuple(
            each for each in self.met if each == self.present or not Lead.of(self.met[best], self.met[each]).is_clear
        )

    @property
    def is_decided(self) -> bool:
        """More requests would change nothing: nothing is to be gained, or everything that is left gains much, or
        nothing that matters."""
        if self._part(self.present) >= ENOUGH:
            return True
        leads = [Lead.of(self.met[each], self.met[self.present]) for each in self.still_in if each != self.present]
        return all(lead.mean - lead.chance >= self.wide for lead in leads) or all(
            lead.mean + lead.chance < self.least for lead in leads
        )

    def _part(self, candidate: Candidate) -> float:
        met = self.met[candidate]
        return sum(met) / len(met) if met else 0.0
