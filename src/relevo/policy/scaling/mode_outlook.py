"""What the simulator says of a way of sharing the work under a demand, and how far two may be compared. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

from relevo.policy.scaling.chance import variance_of_part

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
    is_beaten: bool = False  # by another mode, by more than chance: it was not simulated to the end

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
