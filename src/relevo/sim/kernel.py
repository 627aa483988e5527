"""Virtual time: what happens next, in which order. Deterministic, synchronous, without threads.

Owns the clock, the events to come and the seed. Events of one instant happen in the order in which they were asked
for, so that a seed gives one history. Does not know what the events mean.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from heapq import heapify, heappop, heappush
from random import Random
from typing import Any

NS_PER_S = 1_000_000_000
_EVENTS_PER_TELL = 10_000  # arbitrary: some times a second
_MAX_CANCELLED = 1024  # arbitrary: below it, cancelled events are left where they are


@dataclass(slots=True, eq=False)
class Event:
    """One call to come. `core.ports.TimerHandle`."""

    at_ns: int
    callback: Callable[..., None] | None
    args: tuple[Any, ...]
    kernel: Kernel

    def cancel(self) -> None:
        """It does not happen. Idempotent, and harmless once it has happened."""
        if self.callback is not None:
            self.callback, self.args = None, ()
            self.kernel.note_cancelled()


class Kernel:
    """Implements `core.ports.Clock` and `core.ports.Timers`."""

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed
        self.num_events = 0  # that have happened
        self._now_ns = 0
        self._order = 0
        self._heap: list[tuple[int, int, Event]] = []
        self._num_cancelled = 0

    def now_ns(self) -> int:
        return self._now_ns

    def call_at(self, at_ns: int, callback: Callable[..., None], *args: Any) -> Event:
        """`callback(*args)` at `at_ns`; what is due already happens in this instant, after what was asked for."""
        event = Event(max(at_ns, self._now_ns), callback, args, self)
        self._order += 1
        heappush(self._heap, (event.at_ns, self._order, event))
        return event

    def call_after(self, delay_ns: int, callback: Callable[..., None], *args: Any) -> Event:
        return self.call_at(self._now_ns + delay_ns, callback, *args)

    def rng(self, name: str) -> Random:
        """Random numbers of one part of the world: how many another part draws does not change them."""
        digest = blake2b(name.encode(), key=self.seed.to_bytes(16, "little", signed=True), digest_size=8).digest()
        return Random(int.from_bytes(digest, "little"))

    @property
    def next_at_ns(self) -> int | None:
        """When the next event is due; None: nothing is to come."""
        while self._heap and self._heap[0][2].callback is None:
            heappop(self._heap)
            self._num_cancelled -= 1
        return self._heap[0][0] if self._heap else None

    def step(self) -> bool:
        """The next event happens. False: nothing is to come."""
        heap = self._heap
        while heap:
            at_ns, _, event = heappop(heap)
            callback = event.callback
            if callback is None:
                self._num_cancelled -= 1
                continue
            self._now_ns = at_ns
            self.num_events += 1
            args, event.callback, event.args = event.args, None, ()
            callback(*args)
            return True
        return False

    def run(self, until_ns: int | None = None, tell: Callable[[], None] = lambda: None) -> None:
        """Until nothing is to come, or until what is due by `until_ns` has happened; the clock then stands there.

        `tell` is called now and then, for a progress bar."""
        while self._run_some(until_ns):
            tell()
        if until_ns is not None:
            self._now_ns = max(self._now_ns, until_ns)

    def _run_some(self, until_ns: int | None) -> bool:
        """False: that was all."""
        for _ in range(_EVENTS_PER_TELL):
            if until_ns is not None and (self.next_at_ns or 0) > until_ns:
                return False
            if not self.step():
                return False
        return True

    def note_cancelled(self) -> None:
        """Called by events. Timers that are cancelled long before they are due would fill the heap."""
        self._num_cancelled += 1
        if self._num_cancelled > _MAX_CANCELLED and 2 * self._num_cancelled > len(self._heap):
            self._heap = [entry for entry in self._heap if entry[2].callback is not None]
            heapify(self._heap)
            self._num_cancelled = 0


def seconds(duration_s: float) -> int:
    """In nanoseconds, as the kernel counts."""
    return round(duration_s * NS_PER_S)
