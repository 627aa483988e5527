"""Ends a text at the first stop string, across the borders of the pieces in which the text arrives.

Owns the tail that could still become a stop string. The outcome depends on the text alone, not on how it is cut: of
all occurrences the one that is complete first counts, and the longest of those that are complete at the same place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from relevo.core.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class StopOutcome:
    """Text that may be sent now, and the stop string that ended the text, if one did."""

    text: str
    stop: str | None = None

    @property
    def stopped(self) -> bool:
        return self.stop is not None


class StopStringMatcher:
    """One continuation. Work per piece is bounded by the lengths of the piece and of the stop strings."""

    def __init__(self, stops: Sequence[str], *, include_stop_str_in_output: bool = False) -> None:
        if not all(stops):
            raise InvalidRequest("a stop string must not be empty", param="stop")
        self._stops = tuple(sorted(set(stops), key=len, reverse=True))
        self._longest = len(self._stops[0]) if self._stops else 0
        self._include_stop = include_stop_str_in_output
        self._held = ""
        self._stopped_by: str | None = None

    def feed(self, delta: str) -> StopOutcome:
        """Take more text. After a stop string nothing is emitted any more."""
        if not self._stops or self._stopped_by is not None:
            return StopOutcome("" if self._stopped_by else delta, self._stopped_by)
        text = self._held + delta
        found = self._first_stop(text)
        if found is not None:
            end, stop = found
            self._held, self._stopped_by = "", stop
            return StopOutcome(text[: end if self._include_stop else end - len(stop)], stop)
        num_safe = len(text) - self._num_held(text)
        self._held = text[num_safe:]
        return StopOutcome(text[:num_safe])

    def flush(self) -> str:
        """The tail that was held back, when the text ends without a stop string."""
        held, self._held = self._held, ""
        return held

    def _first_stop(self, text: str) -> tuple[int, str] | None:
        """End of the occurrence that is complete first, and its stop string (the longest of several)."""
        best: tuple[int, str] | None = None
        for stop in self._stops:  # longest first, so that a later one with the same end does not win
            start = text.find(stop)
            if start >= 0 and (best is None or start + len(stop) < best[0]):
                best = (start + len(stop), stop)
        return best

    def _num_held(self, text: str) -> int:
        """Length of the longest tail that begins a stop string."""
        for length in range(min(self._longest - 1, len(text)), 0, -1):
            tail = text[-length:]
            if any(stop.startswith(tail) for stop in self._stops):
                return length
        return 0
