"""What the simulator says of a way of sharing the work under a demand, and how far two may be compared. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, sqrt

from relevo.policy.scaling.chance import variance_of_part

_NEXT_TO_NONE = 0.01  # part of requests that meet the targets. Arbitrary
_SOONER = 0.9  # times as long, at most, for answers to come clearly sooner. Arbitrary
_SURGE_WEIGHT = 0.3  # of what a surge would make of a mode. Arbitrary: it may come, the expected load will


@dataclass(frozen=True, slots=True, kw_only=True)
class ModeOutlook:
    """Of a mode under the demand that is expected. Times are None if nothing was answered."""

    attained: float  # part of requests that meet both targets
    ttft_p90_s: float | None
    itl_p90_s: float | None
    floor_ttft_s: float = 0.0  # of a median prompt that meets no other request
    surge_attained: float | None = None  # part that does when `PlannerLimits.surge` times as many come; None: not asked
    num_judged: int = 0  # simulated requests that `attained` is a part of; 0: it is exact
    num_surged: int = 0
    answer_s: float | None = None  # mean time to the end of those that were answered; None: none was, or not asked
    answered: float = 1.0  # part that was; the others were refused
    is_beaten: bool = False  # by another mode, by more than chance: it was not simulated to the end

    @property
    def misses_all(self) -> bool:
        """Next to none of the requests meet the targets: only that they are answered, and how soon, is worth something
        then."""
        return self.attained < _NEXT_TO_NONE

    @property
    def worth(self) -> tuple[float, float]:
        """Sorts what different modes, or numbers of workers, make of one demand."""
        return (0.0, -self._late_s) if self.misses_all else (self.attained, 0.0)

    def is_sooner_than(self, other: ModeOutlook) -> bool:
        """Where neither meets the targets: by more than chance."""
        return self.misses_all and other.misses_all and self._late_s < _SOONER * other._late_s

    @property
    def _late_s(self) -> float:
        """Who is refused comes again, so that a refusal counts as much time as an answer."""
        return self.answer_s / self.answered if self.answer_s is not None and self.answered > 0.0 else inf

    def better_by(self, other: ModeOutlook) -> float:
        """Gain over another one, in requests that meet the targets: under the load that is expected, and, for less,
        in a surge. Where all meet them there is nothing to gain: times that no request misses are no reason."""
        gain = self.attained - other.attained
        if self.surge_attained is None or other.surge_attained is None:
            return gain
        return (1.0 - _SURGE_WEIGHT) * gain + _SURGE_WEIGHT * (self.surge_attained - other.surge_attained)

    def noise(self, other: ModeOutlook) -> float:
        """By how much `better_by` may be off because so few requests were simulated: two standard errors. All modes get
        the same requests, so the difference of two varies by about half of what both do."""
        weight = 0.0 if self.surge_attained is None or other.surge_attained is None else _SURGE_WEIGHT
        variance = sum(
            (1.0 - weight) ** 2 * variance_of_part(each.attained, each.num_judged)
            + weight**2 * variance_of_part(each.surge_attained or 0.0, each.num_surged)
            for each in (self, other)
        )
        return 2.0 * sqrt(variance / 2.0)
