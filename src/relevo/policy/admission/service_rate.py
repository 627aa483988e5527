"""How fast the service gets through what waits, learned while it does: the ground of every predicted waiting time.

Owns running estimates: cost tokens per second that leave the line while a request waits, output tokens per
request, and seconds that a request keeps its place on a decode worker. Recent seconds count, older ones fade. Does not
know where the samples come from."""

from __future__ import annotations

import math
from dataclasses import dataclass

_FADING_S = 5.0  # arbitrary: the last five seconds or so of a busy line count
_ENOUGH_S = 0.5  # arbitrary: a shorter observation says nothing about a rate
_LEAST = 0.1  # arbitrary: no prediction is better than that
_NEWEST = 0.05  # weight of the newest of a mean: the last twenty or so count


@dataclass(slots=True)
class DrainRate:
    """Cost tokens per second. A line that is empty has no rate: only time in which a request waits is counted."""

    _tokens: float = 0.0  # faded sums
    _busy_s: float = 0.0
    _busy_since_ns: int | None = None

    def waits(self, now_ns: int) -> None:
        """A request waits from here on."""
        if self._busy_since_ns is None:
            self._busy_since_ns = now_ns

    def left(self, cost_tokens: int, now_ns: int, *, is_empty: bool) -> None:
        """One left the line; `is_empty`: no other waits any more."""
        if self._busy_since_ns is not None:
            self._pass(now_ns)
            self._tokens += cost_tokens
        self._busy_since_ns = None if is_empty else now_ns

    def tokens_per_s(self) -> float | None:
        """None: too little was seen."""
        return self._tokens / self._busy_s if self._busy_s >= _ENOUGH_S and self._tokens else None

    def emptied(self, now_ns: int) -> None:
        """The last one left without being served."""
        self._pass(now_ns)
        self._busy_since_ns = None

    def _pass(self, now_ns: int) -> None:
        if self._busy_since_ns is None:
            return
        passed_s = max(0.0, (now_ns - self._busy_since_ns) / 1e9)
        keep = math.exp(-passed_s / _FADING_S)
        self._tokens, self._busy_s = self._tokens * keep, self._busy_s * keep + passed_s


@dataclass(slots=True)
class OfferedRate:
    """Cost tokens per second that arrive. Of a burst after a pause only as much as it weighs over the fading time."""

    _tokens: float = 0.0  # faded
    _at_ns: int = 0

    def observe(self, cost_tokens: int, now_ns: int) -> None:
        self._tokens = self._faded(now_ns) + cost_tokens
        self._at_ns = now_ns

    def tokens_per_s(self, now_ns: int) -> float:
        return self._faded(now_ns) / _FADING_S

    def _faded(self, now_ns: int) -> float:
        return self._tokens * math.exp(-max(0, now_ns - self._at_ns) / 1e9 / _FADING_S)


@dataclass(slots=True)
class Allowance:
    """How much later than predicted things happen: the mean error and four mean deviations, as TCP does it."""

    _error_s: float = 0.0
    _deviation_s: float = 0.0

    def observe(self, predicted_s: float, actual_s: float) -> None:
        miss_s = actual_s - predicted_s - self._error_s
        self._error_s += miss_s / 8.0  # TCP's weights: RFC 6298
        self._deviation_s += (abs(miss_s) - self._deviation_s) / 4.0

    def within(self, bound_s: float) -> float:
        """Seconds: at least a tenth, at most half of the bound that it is held against."""
        return min(max(_LEAST * bound_s, self._error_s + 4.0 * self._deviation_s), bound_s / 2.0)


@dataclass(slots=True)
class RunningMean:
    """Exponentially weighted; None before the first sample."""

    value: float | None = None

    def observe(self, sample: float) -> None:
        self.value = sample if self.value is None else self.value + _NEWEST * (sample - self.value)
