"""When the requests of a workload arrive: as recorded, faster, at another rate, from another process, or after one
another.

What is done is said in the workload's notes. Pure: every draw comes from the seed.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import pairwise

from relevo.workload.arrivals import ArrivalKind, arrival_offsets
from relevo.workload.requests import Workload, WorkloadRequest

MAX_LENGTH_S = 4e9  # more than a century; arbitrary


class Loop(StrEnum):
    RECORDED = "recorded"  # a request waits for the answer before it where the source says so
    OPEN = "open"  # every request comes at its time
    CLOSED = "closed"  # every turn of a session waits for the answer before it


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Rates and processes concern the requests that wait for no answer: in a closed loop, where sessions begin."""

    rate_per_s: float | None = None  # None: as recorded
    arrival: ArrivalKind | None = None  # None: recorded times, stretched to the rate if there is one
    burstiness: float = 1.0  # of ArrivalKind.GAMMA
    speed: float = 1.0  # 2 makes recorded times pass twice as fast; pauses after answers stay as they are
    spread_ticks: bool = True  # where recorded times lie on ticks, spread them inside
    loop: Loop = Loop.RECORDED
    num_clients: int | None = None  # so many clients with a session each at any time, one session after the other
    duration_s: float | None = None  # later arrivals are left out
    seed: int = 0


def in_order(requests: Iterable[WorkloadRequest]) -> list[WorkloadRequest]:
    """Sorted by arrival, times counted from the first one; what waits for a parent stays behind it. Stable."""
    due_s: dict[int, float] = {}
    kept = list(requests)
    for request in kept:  # a parent comes before its children
        after_s = due_s.get(request.parent, 0.0) if request.parent is not None else 0.0
        recorded_s = after_s if request.arrived_at_s is None else request.arrived_at_s
        due_s[request.row] = max(after_s, recorded_s) if request.is_closed_loop else recorded_s
    first_s = min((r.arrived_at_s for r in kept if r.arrived_at_s is not None), default=0.0)
    if first_s:
        kept = [r if r.arrived_at_s is None else replace(r, arrived_at_s=r.arrived_at_s - first_s) for r in kept]
    return sorted(kept, key=lambda request: due_s[request.row])


def time_workload(workload: Workload, timing: Timing) -> Workload:
    """The workload with its arrivals as `timing` wants them. Raises ValueError for what there are no times for."""
    notes = list(workload.notes)
    requests = _looped(workload.requests, Loop.CLOSED if timing.num_clients is not None else timing.loop)
    if timing.num_clients is not None:
        requests = _chained(requests, timing.num_clients)
        notes.append(f"closed loop: {timing.num_clients} clients begin at once, each with one session after the other")
    elif timing.arrival is not None or _needs_times(requests, timing):
        requests = _drawn(requests, timing)
        notes.append(f"arrivals are drawn ({timing.arrival or ArrivalKind.POISSON}, seed {timing.seed})")
    else:
        requests = _recorded(requests, timing, notes)
    timed = in_order(_until(requests, timing.duration_s))
    _check_length(timed)
    return Workload(requests=timed, notes=tuple(notes))


def _check_length(requests: Sequence[WorkloadRequest]) -> None:
    """Nanoseconds of virtual time are 64 bits in the results."""
    last_s = max((r.arrived_at_s or 0.0 for r in requests if not r.is_closed_loop), default=0.0)
    length_s = last_s + sum(r.gap_s or 0.0 for r in requests)
    if not length_s <= MAX_LENGTH_S:
        raise ValueError(
            f"its arrivals and pauses take {length_s:.3g} s together; expected at most {MAX_LENGTH_S:g}, so check the"
            " unit of its times, or make them pass faster with --speed"
        )


def tick_s(requests: Iterable[WorkloadRequest]) -> float | None:
    """The tick that recorded times were rounded to, if requests share them: the commonest gap between distinct times.

    3 s in Mooncake's conversation trace; replayed as it is, such a trace arrives in batches. None if most requests
    have a time of their own.
    """
    stamps = [r.arrived_at_s for r in requests if r.arrived_at_s is not None and not r.is_closed_loop]
    times = sorted(set(stamps))
    if len(times) < 2 or len(stamps) < 2 * len(times):
        return None
    gaps_ms = Counter(round((later - earlier) * 1e3) for earlier, later in pairwise(times))
    return gaps_ms.most_common(1)[0][0] / 1e3


def spread_ticks(requests: Sequence[WorkloadRequest], rng: random.Random) -> list[WorkloadRequest]:
    """Every arrival at a uniform place inside its tick; unchanged if there are no ticks."""
    tick = tick_s(requests)
    if tick is None:
        return list(requests)
    return in_order(
        replace(r, arrived_at_s=r.arrived_at_s + rng.random() * tick)
        if r.arrived_at_s is not None and not r.is_closed_loop
        else r
        for r in requests
    )


def _looped(requests: Sequence[WorkloadRequest], loop: Loop) -> Sequence[WorkloadRequest]:
    if loop is Loop.RECORDED:
        return requests
    if loop is Loop.OPEN:
        return [replace(request, gap_s=None) for request in requests]
    at_s = {request.row: request.arrived_at_s for request in requests}
    return [
        request
        if request.parent is None or request.is_closed_loop
        else replace(request, gap_s=max(0.0, (request.arrived_at_s or 0.0) - (at_s[request.parent] or 0.0)))
        for request in requests
    ]


def _chained(requests: Sequence[WorkloadRequest], num_clients: int) -> list[WorkloadRequest]:
    """Session i begins when session i - num_clients has ended. A parent comes before its children."""
    session_of: dict[int, int] = {}
    ends: list[int] = []  # the last row of each session
    for request in requests:
        session = len(ends) if request.parent is None else session_of.get(request.parent, len(ends))
        ends[session : session + 1] = [request.row]
        session_of[request.row] = session
    chained = []
    for request in requests:
        session = session_of[request.row]
        if request.parent is not None:
            chained.append(replace(request, arrived_at_s=None))
        elif session < num_clients:
            chained.append(replace(request, arrived_at_s=0.0))
        else:
            chained.append(replace(request, arrived_at_s=None, parent=ends[session - num_clients], gap_s=0.0))
    return chained


def _drawn(requests: Sequence[WorkloadRequest], timing: Timing) -> list[WorkloadRequest]:
    if timing.rate_per_s is None:
        raise ValueError("there are no arrival times; give a rate (--rate) or a number of clients (--num-clients)")
    rng = random.Random(f"arrivals:{timing.seed}")
    kind = timing.arrival or ArrivalKind.POISSON
    offsets = arrival_offsets(kind, timing.rate_per_s, rng, burstiness=timing.burstiness)
    return [replace(r, arrived_at_s=None if r.is_closed_loop else next(offsets)) for r in requests]


def _recorded(requests: Sequence[WorkloadRequest], timing: Timing, notes: list[str]) -> list[WorkloadRequest]:
    tick = tick_s(requests)
    if tick is not None and timing.spread_ticks:
        requests = spread_ticks(requests, random.Random(f"ticks:{timing.seed}"))
        notes.append(f"arrivals were recorded in ticks of {tick:g} s and are spread evenly inside them")
    elif tick is not None:
        notes.append(f"arrivals come in batches every {tick:g} s, as they were recorded")
    speed = timing.speed
    recorded = _rate_per_s(requests)
    if timing.rate_per_s is not None and recorded is not None:
        speed *= timing.rate_per_s / recorded
        notes.append(
            f"recorded times pass {speed:.3g} times as fast: {recorded:.3g} -> {recorded * speed:.3g} per second"
        )
    elif speed != 1.0:
        notes.append(f"recorded times pass {speed:.3g} times as fast")
    return [
        replace(r, arrived_at_s=None if r.is_closed_loop or r.arrived_at_s is None else r.arrived_at_s / speed)
        for r in requests
    ]


def _needs_times(requests: Sequence[WorkloadRequest], timing: Timing) -> bool:
    """Some arrivals were not recorded, or they have no rate that could be changed to the one asked for."""
    if timing.rate_per_s is not None and _rate_per_s(requests) is None:
        return True
    return any(request.arrived_at_s is None and not request.is_closed_loop for request in requests)


def _rate_per_s(requests: Iterable[WorkloadRequest]) -> float | None:
    """None if everything arrives at once: sessions whose times count from their own beginning."""
    times = [r.arrived_at_s for r in requests if r.arrived_at_s is not None and not r.is_closed_loop]
    span_s = max(times) - min(times) if times else 0.0
    return (len(times) - 1) / span_s if span_s > 0 else None


def _until(requests: Sequence[WorkloadRequest], duration_s: float | None) -> Sequence[WorkloadRequest]:
    """Without what comes at `duration_s` or later, and what would wait for it."""
    if duration_s is None:
        return requests
    kept: dict[int, WorkloadRequest] = {}
    for request in requests:
        waits = request.is_closed_loop
        if (waits and request.parent in kept) or (not waits and (request.arrived_at_s or 0.0) < duration_s):
            kept[request.row] = request
    return list(kept.values())
