"""How long a prompt waits where a fixed number of requests is in progress, decoding or in line for a server of prompts.

Load generators measure so. As one request ends the next prompt arrives, so waiting never grows without end: beyond the
load at which prompts keep their servers busy, more requests wait and no more are answered.

Source: mean value analysis with the approximations of Schweitzer (1979) for the queue that an arrival finds and of
Seidmann (1987) for several servers; a prompt in service is half done on average, as of fixed service times.
"""

from __future__ import annotations

from dataclasses import dataclass

_NUM_ROUNDS = 200  # of a damped fixed point. Arbitrary


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptQueue:
    concurrency: float  # requests in progress
    service_s: float  # a prompt alone, from its server's beginning with it to its end
    busy_s: float  # of a server, that a prompt takes from the others: less where prompts share steps
    num_servers: int
    elsewhere_s: float  # that a request spends decoding, until its client sends the next one

    @property
    def load(self) -> float:
        """What the prompts would ask of their servers if they never waited; 1 and above: they wait for each other."""
        return self.concurrency * self.busy_s / self.num_servers / (self.elsewhere_s + self.service_s)

    @property
    def response_s(self) -> float:
        """Waiting and service, mean."""
        demand_s = self.busy_s / self.num_servers
        response_s = self.service_s
        for _ in range(_NUM_ROUNDS):
            rate = self.concurrency / (self.elsewhere_s + response_s)
            in_line = rate * max(0.0, response_s - self.service_s + demand_s) * (1.0 - 1.0 / max(1.0, self.concurrency))
            half_done = min(1.0, rate * demand_s) / 2
            target_s = self.service_s + demand_s * max(0.0, in_line - half_done)
            response_s += 0.5 * (target_s - response_s)
        return response_s
