"""How much of what its hardware can do a worker uses, from its counters at two times.

Owns which limit counts: the one that more is used of, products or memory reads. Prefill runs into the first, decode
into the second; a worker that does both into either.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from relevo.core.events import StepCounters, WorkerLimits


class Limit(StrEnum):
    PRODUCTS = "products"
    BANDWIDTH = "bandwidth"


class Utilisation(NamedTuple):
    busy_fraction: float  # of the time, in steps
    limit: Limit | None = None  # None: no limit is known
    limit_fraction: float | None = None  # of it, over all of the time


def utilisation(before: StepCounters, after: StepCounters, seconds: float, limits: WorkerLimits) -> Utilisation | None:
    """Of one incarnation. None: it counts from zero again, or no time has passed. At most 1: a step counts as it ends,
    and a limit was measured in a moment."""
    busy_s = after.busy_s - before.busy_s
    if seconds <= 0 or busy_s < 0:
        return None
    used = {
        Limit.PRODUCTS: _fraction(after.product_ops - before.product_ops, seconds, limits.product_ops_per_s),
        Limit.BANDWIDTH: _fraction(after.read_bytes - before.read_bytes, seconds, limits.read_bytes_per_s),
    }
    known = {limit: fraction for limit, fraction in used.items() if fraction is not None}
    busy_fraction = min(1.0, busy_s / seconds)
    if not known:
        return Utilisation(busy_fraction)
    limit = max(known, key=lambda each: known[each])
    return Utilisation(busy_fraction, limit, known[limit])


def _fraction(done: float, seconds: float, limit_per_s: float | None) -> float | None:
    return min(1.0, done / seconds / limit_per_s) if limit_per_s else None
