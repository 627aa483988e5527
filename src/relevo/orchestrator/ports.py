"""The seams of the orchestrator: towards the HTTP side that asks for tokens, and towards the workers that make them.

The HTTP side starts a request with an `OutputSink`; membership sees a `WorkerLink` per connection. Neither of them
waits: a gateway drives them from its event loop, a simulated world from its queue of events.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from relevo.core.events import (
    NO_EXPERTS,
    UNKNOWN_LIMITS,
    ExpertLoads,
    StepCounters,
    TokenOutput,
    WorkerLimits,
    WorkerLoad,
)
from relevo.core.kv import KVLayout
from relevo.core.outcome import RequestEnd
from relevo.core.request import EngineRequest
from relevo.core.role import Role
from relevo.core.timeline import Timeline
from relevo.wire.messages import Hello, ToGateway, ToWorker


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStatus:
    """One worker as /health, /ready and /metrics show it."""

    worker_id: str
    role: str  # "prefill", "decode" or "unified"
    ready: bool
    epoch: int
    pid: int
    load: WorkerLoad
    counters: StepCounters
    expert_loads: ExpertLoads = NO_EXPERTS
    layout: KVLayout | None = None
    address: str = ""  # where gateways reach it
    box_id: str = ""  # of its machine
    started_on: tuple[int, ...] = ()  # cores; none: unknown
    cores: tuple[int, ...] = ()  # that it computes on now
    num_ranks: int = 1  # processes that compute its steps
    why_not_ready: str = ""  # empty: it is
    is_leaving: bool = False  # finishes what it has, takes nothing new
    limits: WorkerLimits = UNKNOWN_LIMITS


@dataclass(frozen=True, slots=True, kw_only=True)
class LineStatus:
    """What waits in the gateway, of one class."""

    name: str  # "interactive" or "batch"
    num_waiting: int
    oldest_wait_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStatus:
    """`ready` means: a request sent now would be served."""

    ready: bool
    reason: str  # why not ready, empty otherwise
    num_queued: int = 0  # requests the gateway holds back
    num_in_flight: int = 0  # requests of which a worker may still hold something, the queued ones included
    workers: tuple[WorkerStatus, ...] = field(default_factory=tuple)
    lines: tuple[LineStatus, ...] = field(default_factory=tuple)


class OutputSink(Protocol):
    """What one request's output is told to. Called on the thread that drives the orchestrator; must not wait."""

    def on_output(self, output: TokenOutput) -> None: ...

    def on_end(self, end: RequestEnd) -> None:
        """Exactly once, after every output; within `start` if the request is not let in."""
        ...


class StartedRequest(Protocol):
    """The handle of the HTTP side."""

    def end(self, end: RequestEnd) -> None:
        """The client needs nothing more: it has all it asked for (`COMPLETE`: a stop string), it is gone, its time is
        over. Every worker lets go. Without effect after `on_end`; otherwise `on_end` follows within the call, or just
        after it where the call comes from `on_output`."""
        ...

    @property
    def timeline(self) -> Timeline:
        """What happened to it so far; it goes on being written until the request has ended."""
        ...

    @property
    def route(self) -> str:
        """Why it went where it went so far, decisions in order, in one line."""
        ...


class RequestStarter(Protocol):
    """The orchestrator as it is seen by what has a request to run."""

    def start(self, request: EngineRequest, sink: OutputSink) -> StartedRequest:
        """Let the request in, now or when it is its turn, and tell `sink` its output. Raises nothing: a request that
        is turned away has its end before this returns."""
        ...


class TokenGenerator(RequestStarter, Protocol):
    """What is behind the HTTP side for one model. Implemented by `orchestrator.dispatch` and by fakes in tests."""

    def status(self) -> EngineStatus: ...

    def drain(self, worker_id: str) -> bool:
        """Ask a worker to finish what it runs and leave. False: it is not ready, nothing was asked."""
        ...

    def set_roles(self, roles: Mapping[str, Role], reason: str) -> None:
        """Give workers other roles, all at once. Raises NoWorker if one is not there, InvalidRequest for what cannot
        be."""
        ...


class WorkerLink(Protocol):
    """One connection to one incarnation of a worker, which has said who it is. What it says afterwards is told to
    `Membership.heard`, in order, and its end to `Membership.lost`. An engine that is not ours is a worker behind such a
    link."""

    @property
    def hello(self) -> Hello: ...

    def send(self, message: ToWorker) -> None:
        """In order, without waiting. Raises WorkerLost once the link has ended; `lost` follows."""
        ...

    def close(self) -> None:
        """Idempotent. The worker aborts what was asked for on this link."""
        ...


class AwaitedLink(WorkerLink, Protocol):
    """A link whose messages are waited for, as over a socket."""

    async def receive(self) -> ToGateway:
        """The next message, in order. After the last one WorkerLost, or ProtocolError if the worker sent nonsense."""
        ...
