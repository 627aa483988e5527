"""How long the line should be while more arrives than can be served.

A line is there for chance: it holds what came a little too early. Once it never runs empty, a longer one serves no
request more. It only makes every request wait, and when the overload ends newcomers stand behind all of it. So while an
overload lasts the line is kept as short as it may be without letting the workers run out of work, which is shorter the
more arrives: of four times what can be served the next request comes soon.

An overload is seen when a request is refused although every one has had to wait for as long as any may: what comes
at once and can be served in time is no overload, and neither are clients that wait for their answers. It ends when
a request comes that need not wait. As the load falls, so that chance counts again, the line may grow again.

Owns what arrives (cost tokens per second, refused or not) and since when the line stands. Does not know workers.
Source: good and standing queues of CoDel (Nichols and Jacobson, Controlling Queue Delay, 2012); the length is that of
the M/M/1/K queue that is empty `IDLE_FRACTION` of the time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from relevo.policy.admission.service_rate import OfferedRate, RunningMean

IDLE_FRACTION = 0.001  # arbitrary: of the time, that workers may lack work because the line is short
SHORTEST = 2.0  # arbitrary: requests in line, so that there is an order in which they leave


@dataclass(slots=True)
class OverloadDetector:
    offered: OfferedRate = field(default_factory=OfferedRate)
    _cost_tokens: RunningMean = field(default_factory=RunningMean)  # of a request
    _since_ns: int | None = None  # every request had to wait
    _is_overload: bool = False

    def comes(self, cost_tokens: int, now_ns: int, *, is_idle: bool) -> None:
        """A request comes, whether it will be let in or not; `is_idle`: it would not have to wait."""
        self.offered.observe(cost_tokens, now_ns)
        self._cost_tokens.observe(cost_tokens)
        if is_idle:
            self._is_overload = False
        if is_idle or self._since_ns is None:
            self._since_ns = now_ns

    def overflows(self, longest_s: float, now_ns: int) -> None:
        """A request would have waited longer than the `longest_s` that any may."""
        if self._since_ns is not None and now_ns - self._since_ns >= longest_s * 1e9:
            self._is_overload = True

    def longest_s(self, queue_s: float, drain_tokens_per_s: float | None, now_ns: int) -> float | None:
        """Seconds that a newcomer may have to wait in line, with `queue_s` of work at the workers; None: the line has
        no bound of its own at present. Never below `SHORTEST` requests."""
        cost_tokens = self._cost_tokens.value
        if not self._is_overload or not drain_tokens_per_s or cost_tokens is None:
            return None
        num_requests = enough_waiting(self.offered.tokens_per_s(now_ns) / drain_tokens_per_s)
        if num_requests is None:
            return None
        request_s = cost_tokens / drain_tokens_per_s
        return max(num_requests * request_s - queue_s, SHORTEST * request_s)


def enough_waiting(load: float) -> float | None:
    """Requests in line at `load` times what can be served, so that the line is hardly ever empty; None: no number is
    enough."""
    if load <= 1.0:
        return None
    return math.log(1.0 + (load - 1.0) / IDLE_FRACTION) / math.log(load) - 1.0
