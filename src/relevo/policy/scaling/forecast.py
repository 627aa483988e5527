"""How many requests will come: three simple forecasts, of which the one that erred least of late is believed.

Constant: as now. Seasonal: as a season ago, scaled to the level of today; it needs two seasons and says nothing before.
Kalman: a level and a trend with noise (local linear trend). Rates are per second, one per tick, unknown ticks left out
by the caller. Pure. Source: Harvey, Forecasting, Structural Time Series Models and the Kalman Filter, 2.3.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Protocol

_REMEMBERED = 12  # errors that count. Arbitrary
_CAUTION = 0.9  # another forecast is believed once its error is below so much of the present one's. Arbitrary


class Forecast(Protocol):
    name: str

    def add(self, rate_per_s: float) -> None:
        """Of one more tick."""
        ...

    def ahead(self, num_ticks: int) -> float | None:
        """The rate then, at least 0; None: too little is known."""
        ...


@dataclass(slots=True)
class Constant:
    name: str = "constant"
    _last: float | None = None

    def add(self, rate_per_s: float) -> None:
        self._last = rate_per_s

    def ahead(self, num_ticks: int) -> float | None:
        return self._last


@dataclass(slots=True)
class Seasonal:
    num_ticks: int  # of a season
    name: str = "seasonal"
    _seen: deque[float] = field(init=False)

    def __post_init__(self) -> None:
        self._seen = deque(maxlen=2 * self.num_ticks)

    def add(self, rate_per_s: float) -> None:
        self._seen.append(rate_per_s)

    def ahead(self, num_ticks: int) -> float | None:
        if len(self._seen) < 2 * self.num_ticks:
            return None
        seen, season = list(self._seen), self.num_ticks
        before, now = sum(seen[:season]), sum(seen[season:])
        level = now / before if before > 0.0 else 1.0
        return seen[season + (num_ticks - 1) % season] * level


@dataclass(slots=True)
class Kalman:
    """`level_noise` and `trend_noise` as parts of the variance of what is measured. Arbitrary: levels move within some
    ten ticks, trends slower."""

    level_noise: float = 0.1
    trend_noise: float = 0.01
    name: str = "kalman"
    _level: float = 0.0
    _trend: float = 0.0
    _p: tuple[float, float, float] = (1.0, 0.0, 1.0)  # covariance: level, level and trend, trend
    _num_seen: int = 0

    def add(self, rate_per_s: float) -> None:
        self._num_seen += 1
        if self._num_seen == 1:
            self._level = rate_per_s
            return
        p11, p12, p22 = self._p
        level, trend = self._level + self._trend, self._trend
        p11, p12, p22 = p11 + 2 * p12 + p22 + self.level_noise, p12 + p22, p22 + self.trend_noise
        gain_level, gain_trend = p11 / (p11 + 1.0), p12 / (p11 + 1.0)
        error = rate_per_s - level
        self._level, self._trend = level + gain_level * error, trend + gain_trend * error
        self._p = ((1 - gain_level) * p11, (1 - gain_level) * p12, p22 - gain_trend * p12)

    def ahead(self, num_ticks: int) -> float | None:
        return max(0.0, self._level + num_ticks * self._trend) if self._num_seen >= 3 else None


class Chosen:
    """Asks all of them, and says what the best one of late says."""

    def __init__(self, forecasts: tuple[Forecast, ...], num_ticks_ahead: int) -> None:
        """The first one is believed until another has erred less."""
        self._forecasts = forecasts
        self._ahead = num_ticks_ahead
        self._told: dict[str, deque[float | None]] = {f.name: deque(maxlen=num_ticks_ahead) for f in forecasts}
        self._errors: dict[str, deque[float]] = {f.name: deque(maxlen=_REMEMBERED) for f in forecasts}
        self._best = forecasts[0]

    def add(self, rate_per_s: float) -> None:
        for forecast in self._forecasts:
            told = self._told[forecast.name]
            if len(told) == self._ahead and (then := told[0]) is not None:
                self._errors[forecast.name].append(abs(then - rate_per_s))
            forecast.add(rate_per_s)
            told.append(forecast.ahead(self._ahead))
        self._choose()

    def _choose(self) -> None:
        known = {f.name: error for f in self._forecasts if (error := self.error_of(f.name)) is not None}
        present = known.get(self._best.name)
        for forecast in self._forecasts:
            error = known.get(forecast.name)
            if error is not None and (present is None or error < _CAUTION * present):
                self._best, present = forecast, error

    def error_of(self, name: str) -> float | None:
        """Its mean absolute error of late, in requests per second; None until it has been judged as often as that."""
        errors = self._errors[name]
        return sum(errors) / len(errors) if len(errors) == _REMEMBERED else None

    @property
    def name(self) -> str:
        return self._best.name

    def rate_per_s(self) -> float:
        """At the end of the time ahead; 0 before anything was seen."""
        told = self._best.ahead(self._ahead)
        if told is None:
            told = self._forecasts[0].ahead(self._ahead)
        return told or 0.0
