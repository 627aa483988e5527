"""A possible cause: how much time it took that need not have been, and in which words that is told."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from relevo.policy.slowness.words import SlowCause

MIN_AVOIDABLE_S = 0.05  # less is not felt; arbitrary
MIN_FRACTION = 0.15  # of what it was a part of; arbitrary
MIN_OF_ALL_FRACTION, LONG_S = 0.05, 0.5  # of the whole request, unless it is long in itself; arbitrary


class SlowPart(StrEnum):
    """What was slow."""

    FIRST_TOKEN = "first_token"
    ANSWER = "answer"
    GAP = "gap"  # the worst one between two tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    cause: SlowCause
    part: SlowPart
    avoidable_s: float
    telling: str  # "1.90 s queued at prefill-0: ..."; without a full stop
    detail: str = ""  # which advice of several

    def stands_out(self, part_s: float, e2e_s: float) -> bool:
        """`part_s`: of the whole part."""
        return (
            self.avoidable_s >= MIN_AVOIDABLE_S
            and self.avoidable_s >= MIN_FRACTION * part_s
            and (self.avoidable_s >= LONG_S or self.avoidable_s >= MIN_OF_ALL_FRACTION * e2e_s)
        )
