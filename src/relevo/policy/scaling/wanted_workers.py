"""How many workers there are to be, beside those that are there: ordered, given back, changed by a person. Pure.

Owns the number that was decided last and its reason, how long orders have taken to come, and what a change by hand is.
Who decides a number is `worker_count`; who brings workers and takes them away may be a person, a command or a cluster.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Set
from dataclasses import dataclass, field

from relevo.policy.scaling.enough_workers import CountLimits
from relevo.policy.scaling.worker_count import CountDecision

_STARTS = 8  # of late, whose times say how long the next one takes. Arbitrary


@dataclass(slots=True, kw_only=True)
class WantedWorkers:
    limits: CountLimits
    start_s: float  # from an order until it serves, until one was seen
    hand_hold_s: float = 300.0  # after a change by hand. Arbitrary, as the next
    settle_s: float = 30.0  # that no worker may have come or gone in, before the first number is believed
    number: int | None = None  # None: not known yet
    reason: str = ""  # of that number
    _there: Set[str] = frozenset()
    _known: Set[str] = frozenset()
    _since_s: float | None = None  # that the same ones are there, before there is a number
    _held_until_s: float = 0.0
    _ordered_at_s: float | None = None
    _starts_s: deque[float] = field(default_factory=lambda: deque(maxlen=_STARTS))

    def look(self, now_s: float, there: Set[str], known: Set[str]) -> str:
        """`there`: workers that serve and are to stay. `known`: those that restart, or are away and expected back, too.
        Returns what was changed by hand, in words; empty: nothing."""
        was_there, was_known = self._there, self._known
        self._there, self._known = there, known
        if self.number is None:
            self._begin(now_s, there, was_there)
            return ""
        number = self.number
        if len(there) >= number and self._ordered_at_s is not None:
            self._starts_s.append(now_s - self._ordered_at_s)
            self._ordered_at_s = None
        if len(there) > number >= len(was_there):
            return self._adopt(now_s, len(there), f"{len(there) - number} more than were wanted have come")
        num_left = len(was_known - known) - max(0, len(was_known) - number)  # less those that were given back
        if num_left > 0 and len(known) < number:
            return self._adopt(now_s, number - num_left, f"{num_left} were taken away")
        return ""

    def held_for_s(self, now_s: float) -> float:
        """After a change by hand; 0: no longer."""
        return max(0.0, self._held_until_s - now_s)

    @property
    def num_there(self) -> int:
        """Those that are given back, and have not left yet, are not counted."""
        return min(len(self._there), self.number or 0)

    @property
    def num_coming(self) -> int:
        return max(0, (self.number or 0) - len(self._there))

    @property
    def expected_start_s(self) -> float:
        """The longest of late."""
        return max(self._starts_s, default=self.start_s)

    def decided(self, decision: CountDecision, now_s: float) -> bool:
        """Whether the number has changed by that."""
        before, self.number = self.number or 0, decision.num_workers
        self.reason = decision.reason
        if self.number > before:
            self._ordered_at_s = now_s
        elif self.number < before:
            self._ordered_at_s = None
        return self.number != before

    def forget(self) -> None:
        """Another one decides: what comes of that is found anew."""
        self.number, self.reason = None, ""
        self._since_s, self._ordered_at_s, self._held_until_s = None, None, 0.0

    def _begin(self, now_s: float, there: Set[str], was_there: Set[str]) -> None:
        """With as many as there are, once none comes any more: a gateway that is restarted finds them one by one."""
        if self._since_s is None or there != was_there:
            self._since_s = now_s
        elif now_s - self._since_s >= self.settle_s:
            limits, found = self.limits, f"{len(there)} workers were found"
            self.number = min(limits.most, max(limits.least, len(there)))
            if self.number > len(there):
                found += f", and {limits.least} is the least"
            elif self.number < len(there):
                found += f", and {limits.most} is the most"
            self.reason = found
            if self.number > len(there):
                self._ordered_at_s = now_s

    def _adopt(self, now_s: float, number: int, what: str) -> str:
        self.number, self._ordered_at_s = max(0, number), None
        self._held_until_s = now_s + self.hand_hold_s
        self.reason = f"{what}, by hand, which holds for {self.hand_hold_s:.0f} s"
        return self.reason
