"""Ways between two boxes over which no KV is sent for now: a node has measured that nothing passes, or handoffs fail.

After a failure a way is left alone for a while, twice as long each time; then one handoff tries it while all others
keep away. One that arrives opens it. Pure; times are passed as `now_ns`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from relevo.policy.perf.handoff_costs import BoxPair

FIRST_S, MOST_S = 2.0, 30.0  # arbitrary: one request pays for each trial


@dataclass(frozen=True, slots=True)
class _Failure:
    number: int  # in sequence
    until_ns: int


@dataclass(slots=True)
class ClosedWays:
    _faulty: frozenset[BoxPair] = frozenset()
    _failed: dict[BoxPair, _Failure] = field(default_factory=dict)

    def reported(self, faulty: Iterable[BoxPair]) -> None:
        """All over which nodes could send nothing when they last tried."""
        self._faulty = frozenset(faulty)

    def failed(self, way: BoxPair, now_ns: int) -> bool:
        """A handoff did. False: the way is left alone already, and this one had begun before."""
        before = self._failed.get(way)
        if before is not None and now_ns < before.until_ns:
            return False
        number = before.number + 1 if before is not None else 1
        self._failed[way] = _Failure(number, now_ns + _wait_ns(number))
        return True

    def succeeded(self, way: BoxPair) -> None:
        self._failed.pop(way, None)

    def closed(self, now_ns: int) -> frozenset[BoxPair]:
        """Those that may be tried again by now are not."""
        return self._faulty.union(way for way, failure in self._failed.items() if now_ns < failure.until_ns)

    def tried(self, way: BoxPair, now_ns: int) -> None:
        """A handoff takes it: if that is a trial, no other one does until it has failed, or arrived."""
        failure = self._failed.get(way)
        if failure is not None and now_ns >= failure.until_ns:
            self._failed[way] = _Failure(failure.number + 1, now_ns + _wait_ns(failure.number + 1))


def _wait_ns(number: int) -> int:
    return round(min(MOST_S, FIRST_S * 2.0 ** min(number - 1, 16)) * 1e9)
