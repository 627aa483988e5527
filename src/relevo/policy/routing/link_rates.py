"""How fast KV moves between pairs of workers: as it was measured, and as it is now, from transfers that were made.

Pure. Names pairs that have become much slower than they were; does not decide what to do about them.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

SLOW_FACTOR = 5.0  # below what was measured
MIN_BYTES = 1024 * 1024  # of a transfer that says something about a link
Pair = TypeVar("Pair", bound=Hashable)
_MEMORY = 0.8  # of what was known before a transfer; arbitrary


@dataclass(slots=True)
class _Pair:
    measured: float = 0.0  # bytes/s; 0: not yet
    current: float = 0.0


class LinkRates(Generic[Pair]):
    """Of as many pairs as are noted; forget those that are gone."""

    def __init__(self) -> None:
        self._pairs: dict[Pair, _Pair] = {}

    def measured(self, pair: Pair, rate: float) -> None:
        """By a probe: what the link can do. Starts anew."""
        self._pairs[pair] = _Pair(rate, rate)

    def moved(self, pair: Pair, num_bytes: int, transfer_s: float) -> None:
        """One transfer; small ones say nothing. A link that was never probed is measured by its best."""
        if num_bytes < MIN_BYTES or transfer_s <= 0.0:
            return
        known = self._pairs.setdefault(pair, _Pair())
        seen = num_bytes / transfer_s
        known.current = _MEMORY * known.current + (1.0 - _MEMORY) * seen if known.current else seen
        known.measured = max(known.measured, known.current)

    def rate(self, pair: Pair) -> float:
        """Bytes/s as of now; 0: not known."""
        return self._pairs[pair].current if pair in self._pairs else 0.0

    def slow(self) -> dict[Pair, tuple[float, float]]:
        """(now, as measured) of pairs that are `SLOW_FACTOR` below."""
        return {
            pair: (known.current, known.measured)
            for pair, known in self._pairs.items()
            if known.current * SLOW_FACTOR < known.measured
        }

    def forget(self, pair: Pair) -> None:
        self._pairs.pop(pair, None)
