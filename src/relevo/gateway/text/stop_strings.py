"""Ends a text at the first stop string, across the borders of the pieces in which the text arrives.

Owns the tail that could still become a stop string. The outcome depends on the text alone, not on how it is cut: of
all occurrences the one that is complete first counts, and the longest of those that are complete at the same place.

The work per character is the same for one short stop string and for many long ones. Source: Aho and Corasick,
Efficient String Matching (CACM 1975).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
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


class StopStrings:
    """The stop strings of one request as an automaton, built once and shared by its continuations.

    A state is a beginning of some stop string: the longest one that the text ends with.
    """

    def __init__(self, stops: Iterable[str]) -> None:
        self._next: list[dict[str, int]] = [{}]  # of each state
        self.depth = [0]  # characters of each state
        self.complete: list[str | None] = [None]  # the longest stop string that a text in this state ends with
        for stop in stops:
            if not stop:
                raise InvalidRequest("a stop string must not be empty", param="stop")
            self._insert(stop)
        self._fallback = [0] * len(self._next)  # the state of the next shorter tail
        self._link()
        self.first_chars = frozenset(self._next[0])

    def step(self, state: int, char: str) -> int:
        """The state after one more character."""
        while state and char not in self._next[state]:
            state = self._fallback[state]
        return self._next[state].get(char, 0)

    def _insert(self, stop: str) -> None:
        state = 0
        for char in stop:
            known = self._next[state].get(char)
            if known is None:
                known = self._next[state][char] = len(self._next)
                self._next.append({})
                self.depth.append(self.depth[state] + 1)
                self.complete.append(None)
            state = known
        self.complete[state] = stop

    def _link(self) -> None:
        """Breadth first: the fallback of a state is known before those of longer ones."""
        line = deque(self._next[0].values())
        while line:
            state = line.popleft()
            for char, longer in self._next[state].items():
                self._fallback[longer] = self.step(self._fallback[state], char)
                line.append(longer)
            if self.complete[state] is None:
                self.complete[state] = self.complete[self._fallback[state]]


class StopStringMatcher:
    """One continuation."""

    def __init__(self, stops: StopStrings, *, include_stop_str_in_output: bool = False) -> None:
        self._stops = stops
        self._include_stop = include_stop_str_in_output
        self._state = 0
        self._held = ""  # as long as the state is deep
        self._stopped_by: str | None = None

    def feed(self, delta: str) -> StopOutcome:
        """Take more text. After a stop string nothing is emitted any more."""
        if self._stopped_by is not None:
            return StopOutcome("", self._stopped_by)
        stops, state = self._stops, self._state
        if not state and stops.first_chars.isdisjoint(delta):
            return StopOutcome(delta)
        text, num_before = self._held + delta, len(self._held)
        for position, char in enumerate(delta, num_before + 1):
            state = stops.step(state, char)
            stop = stops.complete[state]
            if stop is not None:
                self._held, self._stopped_by = "", stop
                return StopOutcome(text[: position if self._include_stop else position - len(stop)], stop)
        num_safe = len(text) - stops.depth[state]
        self._state, self._held = state, text[num_safe:]
        return StopOutcome(text[:num_safe])

    def flush(self) -> str:
        """The tail that was held back, when the text ends without a stop string."""
        held, self._held, self._state = self._held, "", 0
        return held
