"""A gateway of a simulated world: the real dispatcher, admission, placement, router and membership, on virtual time.

Owns its links to workers and to the other gateways. What arrives over them is told in order, as the event loop of a
live gateway does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from relevo.core.decisions import DecisionLog, decider
from relevo.core.errors import InternalError, WorkerLost
from relevo.core.events import TokenOutput
from relevo.core.ids import BlockHash, RequestId, WorkerId, WorkerRef
from relevo.core.outcome import RequestEnd
from relevo.core.request import EngineRequest
from relevo.core.timeline import Timeline
from relevo.orchestrator.dispatch import Dispatcher
from relevo.orchestrator.gossip import Gossip, GossipSource
from relevo.orchestrator.in_flight import InFlightRequest
from relevo.orchestrator.member import Member
from relevo.orchestrator.membership import Membership
from relevo.orchestrator.placement import Placement
from relevo.orchestrator.ports import OutputSink, StartedRequest
from relevo.policy.admission.admission import Admission
from relevo.policy.admission.room import RoomLimits
from relevo.policy.http.liveness import INTERVAL_S
from relevo.policy.routing.worker_choice import WorkerChooser
from relevo.policy.worker.prefix_cache import prompt_hashes
from relevo.sim.config import RegionSpec, ServingSpec
from relevo.sim.kernel import Event, Kernel, seconds
from relevo.sim.network import Channel, Link
from relevo.sim.owed import OwedTokens
from relevo.sim.prompts import VirtualTokens
from relevo.sim.quiet import Quiet
from relevo.sim.worker import SimWorker
from relevo.wire import messages as wire
from relevo.wire.gossip import ToListener
from relevo.wire.messages import Message

_CUT_OFF = RequestEnd.failed(InternalError.code, "the gateway is gone")
_TELLS_NOTHING_OF_TOKENS = (wire.Hello, wire.LoadReport, wire.CacheEvents, wire.CacheSnapshot, wire.Pong)
Ways = tuple[Sequence[Link], Sequence[Link]]  # there and back


class SimLink:
    """Implements orchestrator.ports.WorkerLink: one connection between a gateway and a worker, both of its ends."""

    def __init__(
        self,
        kernel: Kernel,
        worker: SimWorker,
        ways: Ways,
        heard: Callable[[SimLink, wire.ToGateway], None],
        lost: Callable[[SimLink], None],
    ) -> None:
        self._worker = worker
        self._heard = heard
        self._lost = lost
        self._has_ended = False
        self._hello: wire.Hello | None = None
        self.owed = OwedTokens()
        self._down: Channel[wire.ToWorker | None] = Channel(kernel, ways[0], self._arrive_down)
        self._up: Channel[wire.ToGateway | None] = Channel(kernel, ways[1], self._arrive_up)
        self._peer = worker.links.connect(self._say, on_close=lambda: self._up.send(None))

    @property
    def hello(self) -> wire.Hello:
        assert self._hello is not None, "the worker has not said who it is"
        return self._hello

    def send(self, message: wire.ToWorker) -> None:
        if self._has_ended:
            raise WorkerLost("the connection has ended")
        if (request_id := _request_of(message)) is not None:
            self.owed.forget(request_id)
        self._down.send(message)

    def close(self) -> None:
        """The gateway's end: what is under way to it is lost, what it has sent arrives before the end does."""
        if not self._has_ended:
            self._has_ended = True
            self._up.close()
            self._down.send(None)

    def _say(self, message: wire.ToGateway) -> None:
        """The worker's. What it tells of a quiet stretch left when its last step ended."""
        ends = self._worker.told_ends
        self._up.send(message, ends[-1] if ends else None)

    @property
    def told_ends(self) -> Sequence[int]:
        """Of the steps that the worker tells of right now, if it tells of several."""
        return self._worker.told_ends

    def _arrive_down(self, message: wire.ToWorker | None) -> None:
        if message is None:
            self._worker.links.disconnect(self._peer)
        else:
            self._worker.links.deliver(self._peer, message)

    def _arrive_up(self, message: wire.ToGateway | None) -> None:
        if message is None:
            self._has_ended = True
            self._down.close()
            self._lost(self)
            return
        if isinstance(message, wire.Hello):
            self._hello = message
        self._heard(self, message)


class NoMetrics:
    """What a gateway measures is read from its results."""

    def admission_rejected(self, model: str, reason: str) -> None: ...

    def deadline_missed(self, model: str, when: str) -> None: ...

    def left_line(self, model: str, class_name: str, waited_s: float) -> None: ...

    def request_fault(self, model: str) -> None: ...

    def handoff_finished(
        self, model: str, outcome: str, handoff_s: float, transferred_bytes: int, transfer_s: float
    ) -> None: ...


def _request_of(message: wire.ToWorker) -> RequestId | None:
    """That it is about, if it is one."""
    match message:
        case wire.Submit() | wire.Reserve() | wire.Prefill():
            return message.request.request_id
        case wire.StartDecode(baton=baton):
            return baton.request_id
        case wire.SealBlocks() | wire.ComputeReserved() | wire.Abort():
            return message.request_id
        case _:
            return None


def hash_prompt(request: EngineRequest, block_size: int) -> Sequence[BlockHash]:
    """Also of prompts that are no tokens."""
    prompt = request.prompt_token_ids
    if isinstance(prompt, VirtualTokens):
        return prompt.text.hashes((len(prompt) - 1) // block_size, block_size)
    return prompt_hashes(request, block_size)


class _LateMembership(Membership):
    """Whose loads are looked at is heard first."""

    def __init__(self, quiet: Quiet, members: Iterable[Member], *, heartbeat_timeout_s: float) -> None:
        super().__init__(members, heartbeat_timeout_s=heartbeat_timeout_s)
        self._quiet = quiet

    @property
    def members(self) -> tuple[Member, ...]:
        self._quiet.catch_up()
        return super().members


class _LatePlacement(Placement):
    """A worker without room has none after more of its quiet steps either."""

    quiet: Quiet

    def has_room(self, in_flight: InFlightRequest, num_behind: int) -> bool:
        with self.quiet.as_told():
            if not super().has_room(in_flight, num_behind):
                return False
        return super().has_room(in_flight, num_behind)


@dataclass(frozen=True, slots=True)
class _Started:
    """Implements orchestrator.ports.StartedRequest."""

    gateway: SimGateway
    in_flight: InFlightRequest

    @property
    def timeline(self) -> Timeline:
        return self.in_flight.timeline

    @property
    def route(self) -> str:
        return self.in_flight.route

    def end(self, end: RequestEnd) -> None:
        self.gateway.quiet.catch_up()
        self.in_flight.end(end)


@dataclass(frozen=True, slots=True)
class _LateTimers:
    """Implements core.ports.Timers: what a timer decides about is what is known by then."""

    kernel: Kernel
    quiet: Quiet

    def call_at(self, at_ns: int, callback: Callable[[], None]) -> Event:
        return self.kernel.call_at(at_ns, self._call, callback)

    def _call(self, callback: Callable[[], None]) -> None:
        self.quiet.catch_up()
        callback()


@dataclass(slots=True, eq=False)
class SimGateway:
    kernel: Kernel
    gateway_id: str
    region: RegionSpec
    serving: ServingSpec
    kill: Callable[[WorkerRef, str], None]
    quiet: Quiet
    has_traffic: Callable[[], bool] = lambda: True  # False: no request is there or to come, the world may end
    decisions: DecisionLog | None = None
    metrics: Any = field(default_factory=NoMetrics)
    is_dead: bool = False
    membership: Membership = field(init=False)
    placement: _LatePlacement = field(init=False)
    admission: Admission = field(init=False)
    dispatcher: Dispatcher = field(init=False)
    links: dict[WorkerId, SimLink] = field(default_factory=dict)
    followers: dict[str, Channel[Sequence[Message]]] = field(default_factory=dict)  # gateways that hear this one
    gossip: Gossip = field(init=False)
    _started: list[InFlightRequest] = field(default_factory=list)  # those that are over are left out now and then
    _owing: dict[SimLink, None] = field(default_factory=dict)  # over which tokens have come that are not told

    def __post_init__(self) -> None:
        serving, specs = self.serving, self.region.workers
        block_size = serving.layout.block_size
        self.membership = _LateMembership(
            self.quiet,
            [Member(WorkerId(spec.worker_id), spec.role, spec.worker_id) for spec in specs],
            heartbeat_timeout_s=serving.heartbeat_timeout_s or 0.0,
        )
        room = RoomLimits(
            max_running=max(spec.max_running for spec in specs),
            max_ahead_tokens=round(serving.max_ahead_steps * max(spec.max_batched_tokens for spec in specs)),
            max_ahead_s=serving.max_ahead_s,
            block_size=block_size,
            tenant_weights=serving.tenant_weights,
            streams_wait_for_line=all(spec.itl_target_s > 0.0 for spec in specs),
        )
        chooser = WorkerChooser(serving.routing, serving.router)
        rng = self.kernel.rng(f"placement of {self.gateway_id}")
        self.placement = _LatePlacement(self.membership, chooser, block_size, rng, room)
        self.placement.quiet = self.quiet
        self.admission = Admission(serving.admission, serving.tenant_weights)
        self.dispatcher = Dispatcher(
            membership=self.membership,
            placement=self.placement,
            admission=self.admission,
            limits=serving.handoff,
            model_name="model",
            metrics=self.metrics,
            clock=self.kernel,
            timers=_LateTimers(self.kernel, self.quiet),
            kill=self.kill,
            hash_prompt=hash_prompt,
            decide=decider(self.decisions, self.gateway_id, self.kernel),
        )
        source = GossipSource(self.placement.change_log, self.placement.peer_state, self.dispatcher.on_heard)
        self.gossip = Gossip(sources={"model": source}, clock=self.kernel, timers=self.kernel, tell=self._tell)

    def start(self, request: EngineRequest, sink: OutputSink) -> StartedRequest:
        """See orchestrator.ports.RequestStarter."""
        self.quiet.catch_up()
        in_flight = self.dispatcher.start(request, sink)
        self.quiet.settle(self)
        self._started.append(in_flight)
        if len(self._started) > 2 * self.dispatcher.num_in_flight + 64:
            self._started = [each for each in self._started if not each.handoff.is_gone]
        return _Started(self, in_flight)

    # ---- workers -----------------------------------------------------------------------------------------------------

    def connect(self, worker: SimWorker, ways: Ways) -> None:
        """To one incarnation; it is let in once it has said who it is."""
        if not self.is_dead:
            worker_id = worker.config.worker_id
            self.links[worker_id] = SimLink(self.kernel, worker, ways, self._heard, self._lost)

    def die(self) -> None:
        """As by kill -9."""
        self.tell_owed()
        self.is_dead = True
        for link in self.links.values():
            link.close()
        for channel in self.followers.values():
            channel.close()
        for in_flight in self._started:
            in_flight.disarm()
            if not in_flight.handoff.has_ended:
                in_flight.sink.on_end(_CUT_OFF)

    def _heard(self, link: SimLink, message: wire.ToGateway) -> None:
        worker_id = link.hello.worker_id
        if not isinstance(message, wire.Hello):
            self._heard_of(worker_id, link, message)
        elif not self.membership.connected(worker_id, link):
            link.close()
        elif self.serving.heartbeat_timeout_s is not None:
            self.kernel.call_after(seconds(INTERVAL_S), self._ping, link)

    def _heard_of(self, worker_id: WorkerId, link: SimLink, message: wire.ToGateway) -> None:
        quiet = self.quiet
        if link.told_ends:
            self._heard_late(link, message, [end_ns + quiet.latency_ns for end_ns in link.told_ends])
            return
        if quiet.may_owe and isinstance(message, wire.StepOutputs):
            message = self._owe(link, message, (self.kernel.now_ns(),))
        elif not isinstance(message, _TELLS_NOTHING_OF_TOKENS):
            self._tell_owed(link, link.owed.take_all())
        self.membership.heard(worker_id, message)
        quiet.settle(self)

    def _heard_late(self, link: SimLink, message: wire.ToGateway, at_ns: Sequence[int]) -> None:
        """Of a quiet stretch: nothing that was decided since would have been decided otherwise."""
        member = self.membership.get(WorkerRef(link.hello.worker_id, link.hello.epoch))
        if member is None:
            return
        if isinstance(message, wire.StepOutputs | wire.LoadReport):
            member.load, member.counters = message.load, message.counters
        if self.quiet.may_owe and isinstance(message, wire.StepOutputs):
            message = self._owe(link, message, at_ns)
        self._take_late(member.ref, message, at_ns)

    def _take_late(self, worker: WorkerRef, message: wire.ToGateway, at_ns: Sequence[int]) -> None:
        self.quiet.arrivals.at_ns = at_ns
        self.dispatcher.take(worker, message)
        self.quiet.arrivals.at_ns = ()

    def _owe(self, link: SimLink, message: wire.StepOutputs, at_ns: Sequence[int]) -> wire.StepOutputs:
        """What is left of it to be told now."""
        outputs = link.owed.keep(message.outputs, at_ns, self.quiet.watched)
        if link.owed:
            self.quiet.owing[self] = self._owing[link] = None
            self._tell_owed(link, link.owed.take([output.request_id for output in outputs]))
        return wire.StepOutputs(outputs, message.load, message.counters)

    def tell_owed(self) -> None:
        """All tokens that have come."""
        while self._owing:
            link, _ = self._owing.popitem()
            self._tell_owed(link, link.owed.take_all())

    def _tell_owed(self, link: SimLink, owed: Iterable[tuple[TokenOutput, Sequence[int]]]) -> None:
        member = self.membership.get(WorkerRef(link.hello.worker_id, link.hello.epoch))
        for output, at_ns in owed:
            if member is not None:
                self._take_late(member.ref, wire.StepOutputs((output,), member.load, member.counters), at_ns)

    def _ping(self, link: SimLink) -> None:
        worker_id = link.hello.worker_id
        if self.links.get(worker_id) is not link or self.is_dead or not self.has_traffic():
            return
        if self.membership.ping(worker_id):
            self.kernel.call_after(seconds(INTERVAL_S), self._ping, link)

    def _lost(self, link: SimLink) -> None:
        self.quiet.catch_up()
        del self.links[link.hello.worker_id]
        self.membership.lost(link.hello.worker_id, "its end of the link has ended")

    # ---- other gateways ----------------------------------------------------------------------------------------------

    def follow(self, other: SimGateway, links: Sequence[Link]) -> None:
        """Hear what the other one has under way, from here on."""
        if not other.followers:
            other.placement.tell(other.gossip.news)
        snapshot = other.gossip.snapshot()
        channel = other.followers[self.gateway_id] = Channel(
            self.kernel, links, lambda messages: self._hear(other.gateway_id, messages)
        )
        channel.send(snapshot)

    def withdraw(self, gateway_id: str) -> None:
        """The other one is gone."""
        self.gossip.lost(gateway_id)

    def _tell(self, messages: Sequence[Message]) -> None:
        for channel in self.followers.values():
            channel.send(messages)

    def _hear(self, gateway_id: str, messages: Sequence[Message]) -> None:
        if not self.is_dead:
            for message in messages:
                self.gossip.hear(gateway_id, cast("ToListener", message))
