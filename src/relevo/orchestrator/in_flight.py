"""One request of this process, from `start` until no worker has anything of it, with all that is not policy's.

Owns its timer: one, for the earliest of its deadlines. Its phase, the waiting in line included, is that of its handoff.
Does not decide: `orchestrator.dispatch` drives it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from relevo.core.handoff import Link
from relevo.core.ids import RequestId, WorkerRef
from relevo.core.outcome import RequestEnd
from relevo.core.ports import Timer, Timers
from relevo.core.request import EngineRequest
from relevo.core.timeline import Leg, Timeline
from relevo.orchestrator.insight import LastOutput
from relevo.orchestrator.ports import OutputSink
from relevo.policy.handoff.effects import Route
from relevo.policy.handoff.events import Event
from relevo.policy.handoff.state import HandoffState
from relevo.policy.worker.prefix_cache import PromptHashes


@dataclass(slots=True)
class HandoffTimes:
    """See `orchestrator.handoff_meter`."""

    is_uncounted: bool = False  # a handoff is under way, its outcome not yet counted
    is_unmeasured: bool = False  # its cost to the client is not yet known
    first_token_at_ns: int | None = None  # of the prefill worker
    link: Link = Link.MEMORY  # over which its blocks go
    prefill: WorkerRef | None = None  # that computes the prompt for another one


@dataclass(slots=True, kw_only=True)
class InFlightRequest:
    """Implements orchestrator.ports.StartedRequest."""

    request: EngineRequest
    sink: OutputSink
    handoff: HandoffState
    end_with: Callable[[InFlightRequest, RequestEnd], None]
    prompt_hashes: PromptHashes = field(default_factory=lambda: PromptHashes(lambda block_size: ()))
    admission_due_at_ns: int | None = None  # when admission is to be asked whether it is too late
    parked: Route | None = None  # no worker is ready: what to decide when one is
    parked_until_ns: int | None = None
    num_behind: int = 0  # requests that waited in line behind it for a prefill worker, see `Placement.has_room`
    is_started: bool = False  # its first token has been told
    compute: str = ""  # class of the worker that gave it, see Member; empty: not known, or no token yet
    is_faulty: bool = False  # code of this process raised over it; said once
    is_driven: bool = False  # an event is being carried out; what comes meanwhile waits in `events`
    events: deque[Event] = field(default_factory=deque)
    route_notes: list[str] = field(default_factory=list)
    handoff_times: HandoffTimes = field(default_factory=HandoffTimes)
    last_output: LastOutput = field(default_factory=LastOutput)
    timeline: Timeline = field(init=False)  # written by `orchestrator.marks`
    worst_gap_ns: int = 0  # between two of its outputs, up to now
    leg: Leg | None = None  # of its timeline, the last
    is_preempted: bool = False  # a continuation has lost its blocks, and no output has come since
    _timer: Timer | None = None
    _timer_at_ns: int = 0

    def __post_init__(self) -> None:
        self.timeline = Timeline(accepted_at_ns=self.request.arrived_at_ns)

    @property
    def request_id(self) -> RequestId:
        return self.request.request_id

    @property
    def num_output_tokens(self) -> int:
        return sum(len(sample.output_token_ids) for sample in self.handoff.samples)

    @property
    def route(self) -> str:
        """See orchestrator.ports.StartedRequest."""
        return " | ".join(self.route_notes)

    def end(self, end: RequestEnd) -> None:
        """See orchestrator.ports.StartedRequest."""
        self.end_with(self, end)

    def park(self, route: Route, until_ns: int) -> None:
        """No worker is ready that it could be routed to."""
        self.parked, self.parked_until_ns = route, until_ns

    def unpark(self) -> Route | None:
        route, self.parked, self.parked_until_ns = self.parked, None, None
        return route

    def arm(self, timers: Timers, on_time: Callable[[InFlightRequest], None]) -> None:
        """See to it that `on_time` is called when something is due. A call that comes too early is harmless: a timer
        is never moved back, so a deadline that every token moves costs none."""
        deadlines = (self.handoff.due_at_ns, self.parked_until_ns, self.admission_due_at_ns)
        due_at_ns = min((at_ns for at_ns in deadlines if at_ns is not None), default=None)
        if due_at_ns is None or (self._timer is not None and self._timer_at_ns <= due_at_ns):
            return
        self.disarm()
        self._timer_at_ns = due_at_ns
        self._timer = timers.call_at(due_at_ns, lambda: self._fire(on_time))

    def disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _fire(self, on_time: Callable[[InFlightRequest], None]) -> None:
        self._timer = None
        on_time(self)
