"""How long to wait before a head is asked again: bounded, spread, and short again after a success. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

FIRST_S = 0.2  # arbitrary: a head that restarts is found again at once
MOST_S = 2.0  # arbitrary: a node is back in use seconds after a link heals
SPREAD = 0.25  # arbitrary: a hundred nodes do not all come at once


@dataclass(slots=True)
class Backoff:
    rng: Random
    num_failures: int = 0

    def next_s(self) -> float:
        """After one more failure."""
        base_s = min(MOST_S, FIRST_S * 2.0 ** min(self.num_failures, 16))
        self.num_failures += 1
        return base_s * (1.0 + SPREAD * (2.0 * self.rng.random() - 1.0))

    def succeeded(self) -> None:
        self.num_failures = 0
