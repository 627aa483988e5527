"""Reads the Prometheus text format, as far as differences between two scrapes need it.

Source: Prometheus exposition formats, text version 0.0.4.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping


def metric_sums(text: str) -> dict[str, float]:
    """Sample name -> sum over all its label sets. Comments, buckets and samples that are not numbers are skipped."""
    sums: dict[str, float] = defaultdict(float)
    for line in text.splitlines():
        if line.startswith("#") or not line.strip():
            continue
        end = line.rfind("}")
        name, _, rest = (line[: line.index("{")], "", line[end + 1 :]) if end >= 0 else line.partition(" ")
        fields = rest.split()
        if name.endswith("_bucket") or not fields:
            continue
        try:
            value = float(fields[0])
        except ValueError:
            continue
        if math.isfinite(value):
            sums[name] += value
    return dict(sums)


def metric_deltas(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """after - before by name; a name that appeared in between counts from 0."""
    return {name: value - before.get(name, 0.0) for name, value in after.items()}
