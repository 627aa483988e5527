"""The edge of a simulated world: one address before several regions, which picks one for each request.

Drives the real `policy.routing.region_choice`: a busy region is passed over, a session stays where it was answered.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Protocol

from relevo.core import errors
from relevo.core.events import TokenOutput
from relevo.core.outcome import RequestEnd
from relevo.core.request import EngineRequest
from relevo.core.timeline import Timeline
from relevo.orchestrator.ports import OutputSink, StartedRequest
from relevo.policy.routing.region_choice import RegionAttempts, RegionChoice
from relevo.sim.kernel import NS_PER_S, Kernel
from relevo.sim.network import Channel, Link

TURNED_AWAY, ANSWERED = 429, 200  # HTTP status, as regions answer an edge


class Region(Protocol):
    """One of the regions, as the edge sees it."""

    @property
    def is_up(self) -> bool: ...

    def start(self, request: EngineRequest, sink: OutputSink) -> StartedRequest: ...


@dataclass(slots=True, eq=False)
class Edge:
    kernel: Kernel
    regions: dict[str, Region]
    links: Callable[[str], tuple[Link, Link]]  # to a region and back
    rng: Random
    choice: RegionChoice = field(default_factory=RegionChoice)

    def start(self, request: EngineRequest, sink: OutputSink) -> StartedRequest:
        attempts = RegionAttempts(self.choice, request.request_id, request.session, len(request.prompt_token_ids))
        return _EdgeRequest(self, request, sink, attempts)


class _EdgeRequest:
    """Implements orchestrator.ports.StartedRequest for the client and OutputSink for the region."""

    def __init__(self, edge: Edge, request: EngineRequest, sink: OutputSink, attempts: RegionAttempts) -> None:
        self._edge = edge
        self._request = request
        self._sink = sink
        self._attempts = attempts
        self._sent_at_ns = 0
        self._is_answered = self._has_ended = False
        self._started: StartedRequest | None = None
        self._there: Channel[Callable[[], None]] | None = None
        self._back: Channel[TokenOutput | RequestEnd] | None = None
        self._try_next(None)

    def end(self, end: RequestEnd) -> None:
        """The client needs nothing more: the region hears it a little later."""
        if self._has_ended:
            return
        if self._there is not None:
            self._there.send(lambda: self._end_in_region(end))
        self._finish(end)

    @property
    def timeline(self) -> Timeline:
        """Of the region that was asked last; without one, of nothing but its arrival."""
        return (
            self._started.timeline
            if self._started is not None
            else Timeline(accepted_at_ns=self._request.arrived_at_ns)
        )

    @property
    def route(self) -> str:
        return self._started.route if self._started is not None else ""

    def on_output(self, output: TokenOutput) -> None:
        assert self._back is not None
        self._back.send(output)

    def on_end(self, end: RequestEnd) -> None:
        assert self._back is not None
        self._back.send(end)

    def _try_next(self, refusal: RequestEnd | None) -> None:
        edge = self._edge
        pick = self._attempts.next_region([name for name, region in edge.regions.items() if region.is_up], edge.rng)
        if pick is None:
            self._finish(refusal or RequestEnd.failed(errors.NoWorker.code, "no region is up", retry_after_s=5.0))
            return
        region, (there, back) = edge.regions[pick.candidate.key], edge.links(pick.candidate.key)
        self._sent_at_ns = edge.kernel.now_ns()
        self._there = Channel(edge.kernel, (there,), lambda call: call())
        self._back = Channel(edge.kernel, (back,), self._heard)
        self._there.send(lambda: self._start_in(region))

    def _start_in(self, region: Region) -> None:
        self._started = region.start(self._request, self)

    def _end_in_region(self, end: RequestEnd) -> None:
        if self._started is not None:
            self._started.end(end)

    def _heard(self, said: TokenOutput | RequestEnd) -> None:
        if self._has_ended:
            return
        waited_s = (self._edge.kernel.now_ns() - self._sent_at_ns) / NS_PER_S
        is_refusal = isinstance(said, RequestEnd) and said.retry_after_s is not None
        if not self._is_answered:
            if not self._attempts.accepts(TURNED_AWAY if is_refusal else ANSWERED, waited_s):
                assert isinstance(said, RequestEnd)
                self._try_next(said)
                return
            self._is_answered = True
        if isinstance(said, RequestEnd):
            self._finish(said)
        else:
            self._sink.on_output(said)

    def _finish(self, end: RequestEnd) -> None:
        self._has_ended = True
        self._edge.choice.end(self._request.request_id)
        self._sink.on_end(end)
