"""Fits an engine's constants to measured times: least squares of the relative error, held by a prior.

A prior is what is known from elsewhere (other engines, other models). With few rows the fit stays near it, with many it
does not matter: so the same fit serves a class that was never seen and one of which five rows were.

Source: Gauss-Newton in the logarithms of the constants, with Huber's weights (Huber 1964) against rows that are wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import exp, log

from relevo.policy.perf.engine_constants import TERMS, EngineConstants, StepWork
from relevo.policy.perf.linear import solve

_MAX_ROUNDS = 25
_DAMPING = 0.05  # of the diagonal, so that a round never jumps far. Arbitrary
_SETTLED = 1e-3  # of all logarithms in a round
_OUTLIER = 0.25  # residual from which a row pulls with constant force. Arbitrary
_SMALLEST, _LARGEST = 1e-9, 1e3

FITTED = tuple(name for name in TERMS if name != "step_s")  # which cannot be told from what layers cost

# A time of zero cannot be found through its logarithm; from here it can go both ways.
_STARTS = {"collective_s": 5e-6, "row_s": 5e-6, "step_s": 2e-4, "ttft_floor_s": 5e-3}


@dataclass(frozen=True, slots=True)
class MeasuredSteps:
    """A mixture of steps, (share, work) each, and the measured time of their mean."""

    steps: tuple[tuple[float, StepWork], ...]
    measured_s: float

    def predicted_s(self, constants: EngineConstants) -> float:
        return sum(share * constants.seconds(work) for share, work in self.steps)

    def slopes(self, constants: EngineConstants, names: Sequence[str]) -> tuple[float, list[float]]:
        """The predicted time, and the derivatives of its logarithm by those of the constants."""
        shares = [0.0] * len(TERMS)
        for share, work in self.steps:
            shares = [total + share * part for total, part in zip(shares, constants.shares(work), strict=True)]
        predicted_s = sum(shares)
        by_name = {
            name: (-part if name.endswith("efficiency") else part) / predicted_s
            for name, part in zip(TERMS, shares, strict=True)
        }
        return predicted_s, [by_name[name] for name in names]

    def error(self, constants: EngineConstants) -> float:
        """Relative; positive: predicted too slow."""
        return self.predicted_s(constants) / self.measured_s - 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FitOptions:
    fitted: tuple[str, ...] = FITTED
    prior_weight: float = 0.5  # rows that agree on a constant outweigh the prior from this number on


def fit_constants(
    rows: Sequence[MeasuredSteps], prior: EngineConstants, options: FitOptions | None = None
) -> EngineConstants:
    """With no rows the prior itself."""
    options = options or FitOptions()
    anchor = [log(getattr(prior, name) or _STARTS[name]) for name in options.fitted]
    if not rows:
        return prior
    logs = list(anchor)
    limits = [0.0 if name.endswith("efficiency") else log(_LARGEST) for name in options.fitted]  # none above 1
    for _ in range(_MAX_ROUNDS):
        change = _round(rows, prior, options, anchor, logs)
        logs = [min(most, max(log(_SMALLEST), at + by)) for most, at, by in zip(limits, logs, change, strict=True)]
        if max(map(abs, change)) < _SETTLED:
            break
    return _with_logs(prior, options.fitted, logs)


def _round(
    rows: Sequence[MeasuredSteps],
    prior: EngineConstants,
    options: FitOptions,
    anchor: Sequence[float],
    logs: Sequence[float],
) -> list[float]:
    """The change of the logarithms that one Gauss-Newton step asks for."""
    size = len(logs)
    here = _with_logs(prior, options.fitted, logs)
    normal = [[0.0] * size for _ in range(size)]
    pull = [0.0] * size
    for row in rows:
        predicted_s, slopes = row.slopes(here, options.fitted)
        residual = log(row.measured_s / predicted_s)
        weight = min(1.0, _OUTLIER / abs(residual)) if residual else 1.0
        for i, slope in enumerate(slopes):
            pull[i] += weight * slope * residual
            for j in range(i + 1):
                normal[i][j] += weight * slope * slopes[j]
    for i in range(size):
        normal[i][i] = (normal[i][i] + options.prior_weight) * (1.0 + _DAMPING)
        pull[i] += options.prior_weight * (anchor[i] - logs[i])
        for j in range(i):
            normal[j][i] = normal[i][j]
    change = solve(normal, pull)
    assert change is not None  # the prior makes the matrix regular
    return [max(-1.0, min(1.0, by)) for by in change]


def _with_logs(constants: EngineConstants, names: Sequence[str], logs: Sequence[float]) -> EngineConstants:
    return replace(constants, **dict(zip(names, map(exp, logs), strict=True)))
