"""How long a request waits for one of several servers that are alike.

Waiting is Erlang's probability that all servers are busy, with an exponential tail whose mean is Allen's and Cunneen's
for general arrivals and service. An estimate for a first look: what is chosen with it is simulated.

Source: Erlang C; Allen, Probability, Statistics and Queueing Theory (1990), 5.3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp
from statistics import fmean

_NUM_HALVINGS = 24


@dataclass(frozen=True, slots=True)
class Wait:
    """P(wait > t) = `busy_probability` * exp(-t / `tail_s`). Saturated: waits grow without end."""

    load: float  # of the servers' time, 1 and above: saturated
    busy_probability: float
    tail_s: float

    @property
    def is_saturated(self) -> bool:
        return self.load >= 1.0

    def exceeds(self, t_s: float) -> float:
        return 1.0 if t_s < 0.0 else self.busy_probability * exp(-t_s / self.tail_s) if self.tail_s > 0 else 0.0


def wait_for(rate_per_s: float, busy_s: Sequence[float], num_servers: int, burstiness: float) -> Wait:
    """`busy_s`: what samples of the requests take of a server's time."""
    mean_s = fmean(busy_s)
    load = rate_per_s * mean_s / num_servers
    if load >= 1.0:
        return Wait(load, 1.0, float("inf"))
    variation = sum((s - mean_s) ** 2 for s in busy_s) / len(busy_s) / mean_s**2 if mean_s > 0 else 0.0
    busy = _erlang_c(num_servers, rate_per_s * mean_s)
    mean_wait_s = mean_s / (num_servers * (1.0 - load)) * (burstiness + variation) / 2  # of those that wait
    return Wait(load, busy, mean_wait_s)


def response_quantile(wait: Wait, service_s: Sequence[float], fraction: float) -> float:
    """Of waiting and service together; `service_s` of samples, each as likely."""
    if wait.is_saturated:
        return float("inf")
    low, high = 0.0, max(service_s) + 40 * max(wait.tail_s, 1e-9)
    for _ in range(_NUM_HALVINGS):
        middle = (low + high) / 2
        beyond = sum(wait.exceeds(middle - s) for s in service_s) / len(service_s)
        low, high = (middle, high) if beyond > 1.0 - fraction else (low, middle)
    return high


def _erlang_c(num_servers: int, offered: float) -> float:
    """Probability that an arrival finds every server busy."""
    blocked = 1.0
    for n in range(1, num_servers + 1):
        blocked = offered * blocked / (n + offered * blocked)
    load = offered / num_servers
    return blocked / (1.0 - load + load * blocked)
