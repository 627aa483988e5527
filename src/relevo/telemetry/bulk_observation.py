"""Many observations of one Prometheus histogram at once, as cheap as one pass over them.

An answer of thousands of tokens brings as many gaps when it ends; observed one by one they would hold up every stream
of the process. Uses what `prometheus_client.Histogram.observe` itself uses, and a test holds it to the same exposition.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence

from prometheus_client import Histogram


def observe_many(histogram: Histogram, values: Sequence[float]) -> None:
    """As `histogram.observe(value)` for each of them. `histogram`: one whose labels are given."""
    if not values:
        return
    bounds = histogram._upper_bounds
    histogram._sum.inc(sum(values))
    for place, number in Counter(bisect_left(bounds, value) for value in values).items():
        histogram._buckets[place].inc(number)
