"""What one gateway saw of one model in five seconds, and the last ten minutes of that.

Owns the interval and its number, by which those of several gateways fall together: Unix seconds over the length. Plain
data that adds up: percentiles are made of it last. Memory grows neither with what happens in an interval nor with time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from msgspec import Struct

from relevo.telemetry.latency_histogram import LatencyHistogram
from relevo.telemetry.live_latency import LiveLatency

INTERVAL_S = 5  # arbitrary
NUM_KEPT = 120  # ten minutes
NUM_LAST_MINUTE = 60 // INTERVAL_S

Counts = dict[int, int]  # of a LatencyHistogram


class Interval(Struct, kw_only=True):
    number: int
    ttft: Counts = {}
    itl: Counts = {}
    e2e: Counts = {}
    itl_by_worker: dict[str, Counts] = {}  # of what came from it
    num_requests: int = 0  # ended
    num_refusals: int = 0
    num_output_tokens: int = 0
    num_prompt_tokens: int = 0  # of requests that got their first token
    num_cached_tokens: int = 0
    num_queued: int | None = None  # at its end; None: it is under way


def interval_of(
    number: int, live: LiveLatency, gaps: dict[str, LatencyHistogram], num_refusals: int, num_queued: int | None
) -> Interval:
    return Interval(
        number=number,
        ttft=live.ttft.counts,
        itl=live.itl.counts,
        e2e=live.e2e.counts,
        itl_by_worker={worker_id: histogram.counts for worker_id, histogram in gaps.items() if histogram.counts},
        num_requests=live.num_requests,
        num_refusals=num_refusals,
        num_output_tokens=live.num_output_tokens,
        num_prompt_tokens=live.num_prompt_tokens,
        num_cached_tokens=live.num_cached_tokens,
        num_queued=num_queued,
    )


def added_up(number: int, intervals: Iterable[Interval]) -> Interval:
    """One of all, of several gateways, models or moments."""
    total = Interval(number=number)
    ttft, itl, e2e = LatencyHistogram(), LatencyHistogram(), LatencyHistogram()
    by_worker: dict[str, LatencyHistogram] = {}
    for each in intervals:
        ttft.merge(each.ttft)
        itl.merge(each.itl)
        e2e.merge(each.e2e)
        for worker_id, counts in each.itl_by_worker.items():
            by_worker.setdefault(worker_id, LatencyHistogram()).merge(counts)
        total.num_requests += each.num_requests
        total.num_refusals += each.num_refusals
        total.num_output_tokens += each.num_output_tokens
        total.num_prompt_tokens += each.num_prompt_tokens
        total.num_cached_tokens += each.num_cached_tokens
        if each.num_queued is not None:
            total.num_queued = (total.num_queued or 0) + each.num_queued
    total.ttft, total.itl, total.e2e = ttft.counts, itl.counts, e2e.counts
    total.itl_by_worker = {worker_id: histogram.counts for worker_id, histogram in by_worker.items()}
    return total


@dataclass(slots=True)
class IntervalRing:
    """Of one model at one gateway, in the order of their numbers."""

    kept: deque[Interval] = field(default_factory=lambda: deque(maxlen=NUM_KEPT))

    def close(self, interval: Interval) -> None:
        """It comes after all that are kept."""
        self.kept.append(interval)

    def since(self, number: int) -> list[Interval]:
        """Those from `number` on."""
        return [interval for interval in self.kept if interval.number >= number]
