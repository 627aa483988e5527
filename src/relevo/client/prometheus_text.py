"""Reads the Prometheus text format, as far as sums and differences between two scrapes need it.

Source: Prometheus exposition formats, text version 0.0.4.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

_SAMPLE = re.compile(r"^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})?\s+(\S+)", re.MULTILINE)
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True, slots=True)
class Sample:
    name: str
    labels_text: str
    value: float

    @property
    def labels(self) -> dict[str, str]:
        """Escapes in values are left as they are."""
        return dict(_LABEL.findall(self.labels_text))


def samples(text: str) -> Iterator[Sample]:
    """Every sample that is a finite number, in order."""
    for name, labels_text, told in _SAMPLE.findall(text):
        try:
            value = float(told)
        except ValueError:
            continue
        if math.isfinite(value):
            yield Sample(name, labels_text, value)


def metric_sums(text: str) -> dict[str, float]:
    """Sample name -> sum over all its label sets, buckets left out."""
    sums: dict[str, float] = defaultdict(float)
    for sample in samples(text):
        if not sample.name.endswith("_bucket"):
            sums[sample.name] += sample.value
    return dict(sums)


def metric_deltas(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """after - before by name; a name that appeared in between counts from 0."""
    return {name: value - before.get(name, 0.0) for name, value in after.items()}
