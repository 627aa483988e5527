"""What a load asks for: how often requests come, how long they are, and what caches of each size would spare them.

Hits come from the hash chains of a workload and the size of a cache, never from a ratio that was given. Pure; who reads
traces and counts hits hands the numbers in.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from relevo.policy.scaling.rhythm import Rhythm

_LAST_PARTS = (1 / 12, 1 / 4)  # of a window, that show a burst. Arbitrary
_FEWEST_LATE = 20  # requests in one of them, to be one. Arbitrary
_ALIKE = 0.1  # part by which mean lengths may differ and be the same. Arbitrary
_ALIKE_BURSTS = 1.5  # times by which burstiness may differ, likewise. Arbitrary
_RUSH, _GONE = 1.1, 1.5  # times the mean that are one, and times the present rate that are over. Arbitrary


@dataclass(frozen=True, slots=True)
class Sample:
    """One request of many. `cached[i]`: of its prompt, in a cache of `Demand.cache_sizes[i]` tokens."""

    num_prompt_tokens: int
    num_output_tokens: int
    cached: tuple[int, ...] = (0,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    requests_per_s: float
    samples: tuple[Sample, ...]  # that stand for all requests
    longest_tokens: int  # prompt and answer
    cache_sizes: tuple[int, ...] = (0,)  # tokens, ascending from 0
    burstiness: float = 1.0  # variance of arrivals over their mean, in windows of seconds; 1: Poisson
    rhythm: Rhythm | None = None  # of bursts that come and go; None: arrivals are even, as far as is known
    num_waiting: int = 0  # requests that came before and wait in line now, ahead of all that come

    def at(self, load: float) -> Demand:
        """The same requests, so many times as often."""
        return replace(self, requests_per_s=self.requests_per_s * load)

    @property
    def mean_prompt_tokens(self) -> float:
        return fmean(sample.num_prompt_tokens for sample in self.samples)

    @property
    def mean_output_tokens(self) -> float:
        return fmean(sample.num_output_tokens for sample in self.samples)

    @property
    def decode_context(self) -> float:
        """Tokens that a row sees while it decodes: long answers stay longer, so they count for more."""
        total = sum(s.num_output_tokens for s in self.samples)
        return sum((s.num_prompt_tokens + s.num_output_tokens / 2) * s.num_output_tokens for s in self.samples) / total

    def cache_index(self, num_tokens: float) -> int:
        """Of the largest size that is not above: hits are rather told too low."""
        return max(0, bisect_right(self.cache_sizes, num_tokens) - 1)

    def hit_fraction(self, index: int) -> float:
        """Of prompt tokens, in a cache of that size."""
        total = sum(sample.num_prompt_tokens for sample in self.samples)
        return sum(sample.cached[index] for sample in self.samples) / total


def is_alike(one: Demand, other: Demand, window_s: float) -> bool:
    """Whether they differ by chance at most: rates and lines by two deviations of a count, lengths by little."""
    rates = (one.requests_per_s, other.requests_per_s)
    if abs(rates[0] - rates[1]) > 2.0 * (max(rates) / window_s) ** 0.5:
        return False
    waiting = (one.num_waiting, other.num_waiting)
    if abs(waiting[0] - waiting[1]) > 2.0 * max(waiting) ** 0.5:
        return False
    if (one.rhythm is None) != (other.rhythm is None):
        return False
    bursts = (one.burstiness, other.burstiness)
    if one.rhythm is not None and max(bursts) > _ALIKE_BURSTS * min(bursts):
        return False
    pairs = (
        (one.mean_prompt_tokens, other.mean_prompt_tokens),
        (one.mean_output_tokens, other.mean_output_tokens),
        (1.0 - one.hit_fraction(0), 1.0 - other.hit_fraction(0)),
    )
    return all(abs(mine - theirs) <= _ALIKE * max(mine, theirs) for mine, theirs in pairs)


def has_gone(asked: Demand, mean_per_s: float, now: Demand | None) -> bool:
    """A rush that was asked about, more than the mean of the window in which it was seen, is over by now: what was
    found out about it is of no use any more."""
    rate = now.requests_per_s if now is not None else 0.0
    return asked.requests_per_s > _RUSH * mean_per_s and asked.requests_per_s > _GONE * rate


def strata(sizes: Sequence[float], most: int) -> list[int]:
    """Positions of at most so many sizes that stand for all of them: one from the middle of each equal part of their
    order, so that long ones are neither missed nor counted twice."""
    order = sorted(range(len(sizes)), key=lambda position: sizes[position])
    number = min(most, len(order))
    return [order[int((i + 0.5) * len(order) / number)] for i in range(number)]


def rate_of_late(ages_s: Sequence[float], window_s: float) -> float:
    """Requests per second, by their ages: of the whole window, or of one of its last parts where clearly more came. A
    burst is over before a minute's mean has followed it, and while it grows a quarter of that is too long, too."""
    whole = len(ages_s) / window_s
    found = [whole]
    for part in _LAST_PARTS:
        part_s = window_s * part
        num_late = sum([age_s < part_s for age_s in ages_s])
        noise = 3.0 * (whole * part_s) ** 0.5  # three deviations of a Poisson count
        if num_late >= _FEWEST_LATE and num_late > whole * part_s + noise:
            found.append(num_late / part_s)
    return max(found)


def dispersion(times_s: Sequence[float], window_s: float) -> float:
    """Variance over mean of the number of arrivals in windows of that length; at least 1."""
    if len(times_s) < 2:
        return 1.0
    first, last = min(times_s), max(times_s)
    num_windows = int((last - first) / window_s)
    if num_windows < 8:  # arbitrary: fewer say nothing
        return 1.0
    counts = [0] * num_windows
    for at_s in times_s:
        window = int((at_s - first) / window_s)
        if window < num_windows:
            counts[window] += 1
    mean = fmean(counts)
    return max(1.0, sum((count - mean) ** 2 for count in counts) / num_windows / mean) if mean else 1.0
