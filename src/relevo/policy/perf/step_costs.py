"""What a step costs, learned while steps happen.

Step time is taken as base + per_token * tokens + per_kv_token * context tokens read, fitted by exponentially weighted
least squares of the relative error. Samples are kept apart by the power of two of their token count, and only a newer
sample of the same class makes an old one fade: hours of decoding do not make the model forget what a prompt costs.
Coefficients are never negative: of the fits in which some of them are zero the best admissible one is taken.

Does not know workers or queues. Source: recursive least squares with forgetting (Ljung, System Identification, 11.2).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import combinations

from relevo.core.events import UNKNOWN_COSTS, StepCosts
from relevo.policy.perf.linear import solve

_FADING = 0.98  # of a sample with each newer one of its class: the last fifty or so count. Arbitrary.
_SCALE = (1.0, 64.0, 4096.0)  # of a feature; only evens out magnitudes
_RIDGE = 1e-6  # of the trace: decides where samples do not (all alike), too small to be seen otherwise
_REFIT_EVERY = 16  # samples, once there are many; a fit costs some ten microseconds
_SUPPORTS = tuple(support for size in (3, 2, 1) for support in combinations(range(3), size))


@dataclass(slots=True)
class _Moments:
    """Faded sums over samples x (3 features) with target 1: x xᵀ as its upper triangle, and x."""

    xx: list[float] = field(default_factory=lambda: [0.0] * 6)
    xy: list[float] = field(default_factory=lambda: [0.0] * 3)

    def add(self, x: tuple[float, float, float], keep: float) -> None:
        a, b, c = x
        self.xx = [keep * m + v for m, v in zip(self.xx, (a * a, a * b, a * c, b * b, b * c, c * c), strict=True)]
        self.xy = [keep * m + v for m, v in zip(self.xy, x, strict=True)]


@dataclass(slots=True)
class _Learned:
    """On one number of cores."""

    classes: dict[int, _Moments] = field(default_factory=dict)
    num_samples: int = 0
    num_fitted: int = 0
    costs: StepCosts = UNKNOWN_COSTS


class StepCostModel:
    """Online estimate of `StepCosts`. All zero before the first sample."""

    def __init__(self) -> None:
        self._learned: dict[int, _Learned] = {}
        self._now = self._learned.setdefault(0, _Learned())

    def computes_on(self, num_cores: int) -> None:
        """What is observed from now on is of so many cores, and so is what is told; what was known of other numbers is
        kept for them. Where nothing is known yet, what was known last is told until something is."""
        told = self.costs
        self._now = self._learned.setdefault(num_cores, _Learned(costs=told))

    def observe(self, num_tokens: int, num_kv_tokens: int, step_s: float) -> None:
        """One step: tokens computed, context tokens read, wall seconds. Steps without duration are ignored."""
        if step_s <= 0.0 or num_tokens < 1:
            return
        now = self._now
        moments = now.classes.get(num_tokens.bit_length())
        if moments is None:
            moments = now.classes[num_tokens.bit_length()] = _Moments()
        x = (1.0 / step_s, num_tokens / _SCALE[1] / step_s, num_kv_tokens / _SCALE[2] / step_s)
        moments.add(x, _FADING)
        now.num_samples += 1

    @property
    def costs(self) -> StepCosts:
        now = self._now
        num_new = now.num_samples - now.num_fitted
        if num_new >= _REFIT_EVERY or (num_new and now.num_samples <= 4 * _REFIT_EVERY):
            now.costs = self._fit()
            now.num_fitted = now.num_samples
        return now.costs

    def _fit(self) -> StepCosts:
        xx, xy = [0.0] * 6, [0.0] * 3
        for moments in self._now.classes.values():
            xx = [t + m for t, m in zip(xx, moments.xx, strict=True)]
            xy = [t + m for t, m in zip(xy, moments.xy, strict=True)]
        ridge = _RIDGE * (xx[0] + xx[3] + xx[5])
        matrix = (
            (xx[0] + ridge, xx[1], xx[2]),
            (xx[1], xx[3] + ridge, xx[4]),
            (xx[2], xx[4], xx[5] + ridge),
        )
        base, per_token, per_kv_token = _least_squares(matrix, xy)
        return StepCosts(base_s=base, per_token_s=per_token / _SCALE[1], per_kv_token_s=per_kv_token / _SCALE[2])


_Matrix = tuple[tuple[float, float, float], tuple[float, float, float], tuple[float, float, float]]


def _least_squares(matrix: _Matrix, vector: list[float]) -> list[float]:
    """The non-negative w with the least wᵀ M w - 2 wᵀ v: the best of the unconstrained fits that are non-negative."""
    best, best_loss = [0.0, 0.0, 0.0], 0.0
    for support in _SUPPORTS:
        solution = solve([[matrix[i][j] for j in support] for i in support], [vector[i] for i in support])
        if solution is None or min(solution) < 0.0:
            continue
        loss = -sum(w * vector[i] for w, i in zip(solution, support, strict=True))  # at a stationary point
        if loss < best_loss:
            best_loss = loss
            best = [0.0, 0.0, 0.0]
            for w, i in zip(solution, support, strict=True):
                best[i] = w
        if len(support) == 3:
            break  # the unconstrained optimum is admissible: nothing is better
    return best
