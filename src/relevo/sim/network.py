"""Links of a simulated world: what is sent over them arrives later, in order, and shares their bandwidth.

Owns what is under way. A `Channel` carries messages one way between two processes, ordered as over TCP: each takes the
latency of the links on its way, jitter, and for each time that it is lost a retransmission; what was sent after it
waits. A `Pipe` carries bytes: its jobs follow one another, and pipes share each link equally (a pipe that is held up
elsewhere leaves its share of a link unused; max-min fairness would give it to others). While a link is down nothing
arrives over it; afterwards everything does. Does not know what messages and bytes mean.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from math import ceil, inf
from random import Random
from typing import Any, Generic, TypeVar

from relevo.sim.kernel import NS_PER_S, Event, Kernel, seconds

M = TypeVar("M")


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkTraits:
    """One way."""

    latency_s: float = 0.0
    jitter_s: float = 0.0  # added to the latency of each message: uniform, from none to this
    bandwidth_bytes_per_s: float = inf  # of pipes; messages are small and take none
    loss_probability: float = 0.0  # of each message, each time it is sent
    retransmission_s: float = 0.2  # later a lost message is sent again; Linux begins with 200 ms


@dataclass(slots=True, eq=False)
class Link:
    name: str
    traits: LinkTraits
    rng: Random
    is_up: bool = True
    num_bytes: int = 0  # carried for pipes
    busy_ns: int = 0  # in which a pipe used it
    pipes: dict[Pipe[Any], None] = field(default_factory=dict)  # that move bytes over it now
    waiting: dict[Channel[Any] | Pipe[Any], None] = field(default_factory=dict)  # for the link to be up again
    _busy_since_ns: int = 0
    _fixed_ns: int | None = None  # what every message takes, if that is the same

    def __post_init__(self) -> None:
        if not self.traits.jitter_s and not self.traits.loss_probability:
            self._fixed_ns = seconds(self.traits.latency_s)

    def delay_ns(self) -> int:
        """Of one message."""
        if self._fixed_ns is not None:
            return self._fixed_ns
        traits = self.traits
        delay_s = traits.latency_s
        if traits.jitter_s:
            delay_s += self.rng.uniform(0.0, traits.jitter_s)
        while traits.loss_probability and self.rng.random() < traits.loss_probability:
            delay_s += traits.retransmission_s
        return seconds(delay_s)

    def cut(self) -> None:
        """From here on nothing arrives."""
        self.is_up = False
        for pipe in tuple(self.pipes):
            pipe.adjust()

    def heal(self) -> None:
        self.is_up = True
        waiting, self.waiting = self.waiting, {}
        for each in waiting:
            each.link_is_up()

    def join(self, pipe: Pipe[Any], now_ns: int) -> None:
        if not self.pipes:
            self._busy_since_ns = now_ns
        self.pipes[pipe] = None

    def leave(self, pipe: Pipe[Any], now_ns: int) -> None:
        if pipe in self.pipes:
            del self.pipes[pipe]
            if not self.pipes:
                self.busy_ns += now_ns - self._busy_since_ns


class Channel(Generic[M]):
    """Messages one way, each delivered once and in order, unless the channel is closed before."""

    def __init__(self, kernel: Kernel, links: Iterable[Link], deliver: Callable[[M], None]) -> None:
        self._kernel = kernel
        self._links = tuple(links)
        self._deliver = deliver
        self._under_way: deque[tuple[int, list[M]]] = deque()  # with the time at which they arrive
        self._is_closed = False

    def send(self, message: M, sent_at_ns: int | None = None) -> None:
        """`sent_at_ns`: it was sent then, and is told only now. One that has arrived meanwhile is delivered at once."""
        if self._is_closed:
            return
        now_ns = self._kernel.now_ns()
        at_ns = now_ns if sent_at_ns is None else sent_at_ns
        for link in self._links:
            at_ns += link.delay_ns()
        if sent_at_ns is not None and at_ns <= now_ns and not self._under_way:
            self._deliver(message)
            return
        if self._under_way:
            last_ns, batch = self._under_way[-1]
            if at_ns <= last_ns:
                batch.append(message)
                return
        self._under_way.append((at_ns, [message]))
        self._kernel.call_at(at_ns, self._arrive)

    def drop(self, is_unwanted: Callable[[M], bool]) -> None:
        """Those messages do not arrive."""
        for _, batch in self._under_way:
            batch[:] = [message for message in batch if not is_unwanted(message)]

    def close(self) -> None:
        """What is under way is lost."""
        self._is_closed = True
        self._under_way.clear()

    def link_is_up(self) -> None:
        """What waited is sent again. Called by links."""
        if self._under_way:
            now_ns = self._kernel.now_ns()
            self._kernel.call_at(now_ns + sum(link.delay_ns() for link in self._links), self._arrive)

    def _arrive(self) -> None:
        """Everything that is due; what a link holds back is asked for again when it is up."""
        now_ns = self._kernel.now_ns()
        while self._under_way and self._under_way[0][0] <= now_ns:
            down = next((link for link in self._links if not link.is_up), None)
            if down is not None:
                down.waiting[self] = None
                return
            for message in self._under_way.popleft()[1]:
                if not self._is_closed:
                    self._deliver(message)


@dataclass(slots=True, eq=False)
class _Job(Generic[M]):
    tag: M
    num_bytes: int


class Pipe(Generic[M]):
    """Jobs of so many bytes each, one after the other; `sent` is told of each when its last byte has left."""

    def __init__(self, kernel: Kernel, links: Iterable[Link], sent: Callable[[M], None]) -> None:
        self._kernel = kernel
        self._links = tuple(links)
        self._sent = sent
        self._jobs: deque[_Job[M]] = deque()  # the first one is on its way
        self._num_left_bytes = 0.0  # of the first
        self._bytes_per_s = 0.0
        self._counted_at_ns = 0
        self._end: Event | None = None
        self._is_moving = False

    def put(self, tag: M, num_bytes: int) -> None:
        self._jobs.append(_Job(tag, num_bytes))
        if len(self._jobs) == 1:
            self._begin()

    def drop(self, is_unwanted: Callable[[M], bool]) -> None:
        """Those jobs are sent no further, the one on its way included."""
        first = self._jobs[0] if self._jobs else None
        self._jobs = deque(job for job in self._jobs if not is_unwanted(job.tag))
        if first is not None and (not self._jobs or self._jobs[0] is not first):
            self._stop()
            if self._jobs:
                self._begin()

    def close(self) -> None:
        self._jobs.clear()
        self._stop()

    def link_is_up(self) -> None:
        """Called by links."""
        self.adjust()

    def adjust(self) -> None:
        """Bytes move at the narrowest share from here on. Called when the pipes of a link change."""
        if not self._is_moving:
            return
        now_ns = self._kernel.now_ns()
        down = next((link for link in self._links if not link.is_up), None)
        if down is not None:
            down.waiting[self] = None
        shares = [link.traits.bandwidth_bytes_per_s / len(link.pipes) for link in self._links]
        rate = 0.0 if down is not None else min(shares, default=inf)
        if rate == self._bytes_per_s and self._end is not None:
            return
        if self._bytes_per_s < inf:  # else it has waited for nothing
            moved = self._bytes_per_s * (now_ns - self._counted_at_ns) / NS_PER_S
            self._num_left_bytes = max(0.0, self._num_left_bytes - moved)
        self._bytes_per_s, self._counted_at_ns = rate, now_ns
        if self._end is not None:
            self._end.cancel()
            self._end = None
        if rate > 0.0:
            self._end = self._kernel.call_after(ceil(self._num_left_bytes / rate * NS_PER_S), self._finish)

    def _begin(self) -> None:
        job, now_ns = self._jobs[0], self._kernel.now_ns()
        if job.num_bytes == 0:  # behind what was sent before, and no load
            self._finish()
            return
        self._is_moving, self._num_left_bytes = True, float(job.num_bytes)
        self._bytes_per_s, self._counted_at_ns = 0.0, now_ns
        for link in self._links:
            link.join(self, now_ns)
        self._adjust_all((self,))

    def _stop(self) -> None:
        """The first job moves no further."""
        if not self._is_moving:
            return
        self._is_moving = False
        if self._end is not None:
            self._end.cancel()
            self._end = None
        for link in self._links:
            link.leave(self, self._kernel.now_ns())
        self._adjust_all(())

    def _adjust_all(self, more: Iterable[Pipe[M]]) -> None:
        for pipe in dict.fromkeys((*(pipe for link in self._links for pipe in link.pipes), *more)):
            pipe.adjust()

    def _finish(self) -> None:
        job = self._jobs.popleft()
        for link in self._links:
            link.num_bytes += job.num_bytes
        self._stop()
        self._sent(job.tag)
        if self._jobs and not self._is_moving:
            self._begin()
