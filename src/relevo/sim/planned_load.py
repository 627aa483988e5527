"""A workload as a planner needs it: its demand in numbers, and a piece of it that is short enough to simulate.

A piece comes from the middle of the workload and is replayed at the rate that is asked about. The requests before it
are sent too, without their answers, so that caches are as warm as they would be; nothing of them is counted. Turns that
wait for an answer are given times, as if answers took what was promised: so every candidate meets the same load.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from relevo.core.errors import SettingsError
from relevo.policy.scaling.demand import Demand, Sample, dispersion, strata
from relevo.policy.scaling.screen import Targets
from relevo.sim.reuse import hit_blocks
from relevo.workload.requests import Workload, WorkloadRequest
from relevo.workload.timing import Timing, in_order, time_workload

NUM_SAMPLES = 128  # of all requests, for formulas. Arbitrary
_CACHE_SIZES = tuple(250_000 * 4**power for power in range(6))  # tokens, up to 256 million
_MOST_LOOKED_UP = 12_500  # requests, for what caches hit. Arbitrary: a production hour
_WINDOW_S = 10.0  # in which arrivals are counted for how bursty they are. Arbitrary
MAX_RATE_PER_S = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """`requests` of which the first `num_warm` are not counted."""

    requests: Sequence[WorkloadRequest]
    num_warm: int
    first_row: int  # of those that are counted, in the workload

    def at(self, rate_per_s: float) -> tuple[Workload, float]:
        """With so many a second; and how many seconds of it only warm caches."""
        timed = time_workload(Workload(requests=self.requests), Timing(rate_per_s=rate_per_s, spread_ticks=False))
        return timed, timed.requests[self.num_warm].arrived_at_s or 0.0


def opened(requests: Sequence[WorkloadRequest], targets: Targets) -> list[WorkloadRequest]:
    """Every request with a time of its own."""
    ends_s: dict[int, float] = {}
    found = []
    for request in requests:
        at_s = request.arrived_at_s or 0.0
        if request.is_closed_loop and request.parent is not None:
            at_s = ends_s.get(request.parent, 0.0) + (request.gap_s or 0.0)
        ends_s[request.row] = at_s + targets.ttft_s + request.num_output_tokens * targets.itl_s
        found.append(replace(request, arrived_at_s=at_s, gap_s=None, parent=None))
    return in_order(found)


def demand_of(requests: Sequence[WorkloadRequest], rate_per_s: float | None) -> Demand:
    """`requests` in the order of arrival. `rate_per_s`: other than theirs. Raises SettingsError where there is none."""
    looked_up = requests[:_MOST_LOOKED_UP]
    sizes, cached = _cached_tokens(looked_up)
    rows = strata([request.num_prompt_tokens for request in looked_up], NUM_SAMPLES)
    times_s = [request.arrived_at_s or 0.0 for request in requests]
    span_s = times_s[-1] - times_s[0]
    recorded = (len(requests) - 1) / span_s if span_s > 0 else None
    rate = rate_per_s or recorded
    if rate is None or not 0.0 < rate <= MAX_RATE_PER_S:
        raise SettingsError("all requests arrive at once, so no rate can be planned for; give --rate, such as 5/s")
    return Demand(
        requests_per_s=rate,
        samples=tuple(
            Sample(
                looked_up[row].num_prompt_tokens,
                looked_up[row].num_output_tokens,
                tuple(hits[row] for hits in cached),
            )
            for row in rows
        ),
        longest_tokens=max(r.num_prompt_tokens + r.num_output_tokens for r in requests),
        cache_sizes=sizes,
        burstiness=dispersion([at_s * (recorded or 1.0) / rate for at_s in times_s], _WINDOW_S),
    )


def piece_of(requests: Sequence[WorkloadRequest], num_counted: int, num_warm: int) -> Piece:
    """From the middle, its counted part as near to it as the workload's length allows."""
    counted = min(num_counted, len(requests))
    warm = min(num_warm, len(requests) - counted)
    first = warm + (len(requests) - counted - warm) // 2
    taken = requests[first - warm : first + counted]
    heads = [replace(request, num_output_tokens=1) for request in taken[:warm]]
    return Piece(requests=[*heads, *taken[warm:]], num_warm=warm, first_row=first)


def _cached_tokens(requests: Sequence[WorkloadRequest]) -> tuple[tuple[int, ...], list[list[int]]]:
    """By cache size: tokens of each prompt that are found, the first size being none."""
    none = [0] * len(requests)
    block_size = next((request.hash_block_size for request in requests if request.hash_ids), 0)
    if not block_size:
        return (0,), [none]
    found = [none]
    for size in _CACHE_SIZES:
        hits = hit_blocks(requests, block_size, size)
        found.append([min((h or 0) * block_size, r.num_prompt_tokens - 1) for h, r in zip(hits, requests, strict=True)])
    return (0, *_CACHE_SIZES), found
