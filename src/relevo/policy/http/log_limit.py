"""How often a place in the code may write a log line: what strangers cause a thousand times is told a few times.

Each place has a bucket of lines that refills with time. What is held back is counted, and told with the next line.
Pure; source: token bucket.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

BURST_LINES = 50  # arbitrary
LINES_PER_S = 2.0  # arbitrary
MAX_PLACES = 1024  # arbitrary, far above the places that log


@dataclass(slots=True)
class _Bucket:
    lines: float
    filled_at_ns: int
    num_held_back: int = 0


@dataclass(slots=True)
class LogLimit:
    _buckets: dict[Hashable, _Bucket] = field(default_factory=dict)

    def admit(self, place: Hashable, now_ns: int) -> int | None:
        """None: hold this line back. Otherwise so many lines of this place were held back since its last."""
        bucket = self._buckets.get(place)
        if bucket is None:
            if len(self._buckets) >= MAX_PLACES:
                self._buckets.clear()
            bucket = self._buckets[place] = _Bucket(BURST_LINES, now_ns)
        refill = (now_ns - bucket.filled_at_ns) / 1e9 * LINES_PER_S
        bucket.lines, bucket.filled_at_ns = min(BURST_LINES, bucket.lines + refill), now_ns
        if bucket.lines < 1.0:
            bucket.num_held_back += 1
            return None
        bucket.lines -= 1.0
        num_held_back, bucket.num_held_back = bucket.num_held_back, 0
        return num_held_back
