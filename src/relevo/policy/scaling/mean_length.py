"""The mean length of answers of which some still run: short ones end first, so a mean of those that ended is too low.

Source: Kaplan and Meier, Nonparametric Estimation from Incomplete Observations, 1958. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence


def mean_length(ended: Sequence[int], running: Sequence[int]) -> float:
    """`running`: lengths so far. As far as the longest of all goes: where none has ended, it is that."""
    lengths = sorted([(length, False) for length in ended] + [(length, True) for length in running])
    mean, part, before = 0.0, 1.0, 0  # part: of answers that are longer than `before`
    for place, (length, still_runs) in enumerate(lengths):
        mean += part * (length - before)
        before = length
        if not still_runs:
            part *= 1.0 - 1.0 / (len(lengths) - place)
    return mean
