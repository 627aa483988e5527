"""Whether a process still answers, counted in intervals in which the one that asks was awake. Pure."""

from __future__ import annotations

from dataclasses import dataclass

INTERVAL_S = 1.0  # arbitrary: what is idle wakes once a second, for microseconds


@dataclass(slots=True)
class Liveness:
    """Time that passes while the asker itself does not run (a suspended machine) counts as one interval."""

    max_unanswered: int
    num_unanswered: int = 0

    @classmethod
    def within(cls, timeout_s: float) -> Liveness:
        return cls(max(2, round(timeout_s / INTERVAL_S)))

    def ask(self) -> bool:
        """One more interval begins. False: too many have passed without a word."""
        if self.num_unanswered >= self.max_unanswered:
            return False
        self.num_unanswered += 1
        return True

    def heard(self) -> None:
        self.num_unanswered = 0
