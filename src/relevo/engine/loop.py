"""The worker's step loop: receive, plan, execute, commit, send. Synchronous, one thread, sleeps when there is no work.

Owns the order of things inside one worker process. Decides nothing: what runs is `policy.worker.scheduler`'s, what a
step computes is the runner's, how KV moves is the transports'. Seen from outside a step is atomic: messages are handled
between steps only, so an acknowledged abort means that no step still writes for the request. What raises while one
request is handled ends that request only.

A turn is `handle` for every message, `begin_step`, the runner, `finish_step`. `run` takes turns in real time; another
driver, such as the simulator, calls the four itself and lets what a step takes pass on a clock of its own.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from relevo.core.errors import StepFailed
from relevo.core.events import StepCounters, TokenOutput, TransferFailed, TransferSealed
from relevo.core.handoff import KVPath
from relevo.core.ids import RequestId, WorkerId
from relevo.core.kv import Reservation
from relevo.core.plan import StepPlan, StepResult
from relevo.core.ports import Clock, KVTransport, ModelRunner
from relevo.engine.cache_feed import CacheFeed
from relevo.engine.drain import Drain
from relevo.engine.load_reports import LoadReports
from relevo.engine.orphans import Orphans
from relevo.engine.outgoing import RemotePrefill
from relevo.engine.request_faults import Asked, failure_of, request_of
from relevo.engine.step_recovery import execute_apart
from relevo.kv.transport_set import TransportSet
from relevo.policy.perf.step_costs import StepCostModel
from relevo.policy.worker.scheduler import Rejected, Scheduler, StepOutcome
from relevo.wire import messages as wire
from relevo.wire.gateway_links import GatewayLinks, PeerGone, PeerId

log = logging.getLogger("relevo.engine")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerIdentity:
    worker_id: WorkerId
    epoch: int
    pid: int
    role: str
    model_name: str


@dataclass(slots=True, kw_only=True)
class EngineLoop:
    identity: WorkerIdentity
    scheduler: Scheduler
    runner: ModelRunner
    transports: TransportSet
    links: GatewayLinks
    costs: StepCostModel
    clock: Clock
    drain_timeout_s: float = 30.0  # how long a drain waits for what runs
    _owners: dict[RequestId, PeerId] = field(default_factory=dict)
    _remote_prefills: dict[RequestId, RemotePrefill] = field(
        default_factory=dict
    )  # prompts computed here for another worker
    _reservations: dict[RequestId, Reservation] = field(default_factory=dict)  # room granted here, still writable
    _orphans: Orphans = field(default_factory=Orphans)
    _fenced_epochs: dict[WorkerId, int] = field(default_factory=dict)  # of peers: nothing older is written to
    _cache_feed: CacheFeed = field(init=False)
    _reports: LoadReports = field(init=False)
    _drain: Drain = field(init=False)

    def __post_init__(self) -> None:
        self._reports = LoadReports(self.scheduler, self.costs, self.transports, self.links)
        self._cache_feed = CacheFeed(self.scheduler.pool, self.links)
        self._drain = Drain(self.links, self.drain_timeout_s)

    # ---- the loop ----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Until drained: everything ended, or the time for it is over."""
        may_wait = True
        while not self.may_leave(now_ns := self.clock.now_ns()):
            may_wait = not self.turn(self._drain.patience_s(now_ns) if may_wait else 0.0)

    def drain(self) -> None:
        """Finish what runs and take nothing new. From a signal handler too."""
        self._drain.ask()

    def may_leave(self, now_ns: int) -> bool:
        """It was drained, and nothing is left or the time for it is over."""
        return self._drain.may_leave(len(self._owners), now_ns)

    def turn(self, patience_s: float | None) -> bool:
        """Messages, what follows from them, at most one step. `patience_s`: how long to wait for a message, None: no
        limit. True if the next turn may find something to do without one."""
        for peer, message in self.links.poll(patience_s):
            self.handle(peer, message, self.clock.now_ns())
        plan = self.begin_step(self.clock.now_ns())
        if plan is None:
            return self.scheduler.has_work()
        result = self.execute(plan)
        self.finish_step(plan, result, self.clock.now_ns())
        return True

    def begin_step(self, now_ns: int) -> StepPlan | None:
        """What follows from the messages handled, then what the next step computes; None: nothing, and gateways know.

        `finish_step` must follow a plan, with no message handled in between."""
        self._take_transfer_events()
        self._end_sealed_legs()
        self._send_grants(now_ns)
        self._drop_withdrawn_legs()
        plan = self.scheduler.plan(now_ns)
        if plan is None:
            self._publish()
        return plan

    def execute(self, plan: StepPlan) -> StepResult:
        """Compute the step. Requests over which it raises end."""
        try:
            result = self.runner.execute(plan)
        except Exception as error:
            return self._recover_step(plan, error)
        self.costs.observe(plan.num_tokens, plan.num_kv_tokens, result.step_s)
        return result

    def finish_step(self, plan: StepPlan, result: StepResult, now_ns: int) -> None:
        """Take in what the step brought and tell it."""
        outcome = self.scheduler.commit(plan, result, now_ns)
        self._reports.count_step(plan, outcome)
        self._push_prefixes(outcome)
        self._cache_feed.publish()  # before the outputs: they may end a request, and this is what it leaves behind
        self._send_outputs(outcome)  # before PrefillDone: the first token does not wait for the handoff
        self._end_sealed_legs()
        self._publish()

    def _publish(self) -> None:
        self._cache_feed.publish()
        self._reports.publish()

    def counters(self) -> StepCounters:
        """Since the start of this incarnation."""
        return self._reports.counters()

    def hello(self) -> wire.Hello:
        return wire.Hello(
            protocol_version=wire.PROTOCOL_VERSION,
            worker_id=self.identity.worker_id,
            epoch=self.identity.epoch,
            pid=self.identity.pid,
            role=self.identity.role,
            layout=self.runner.layout,
            model_name=self.identity.model_name,
            vocab_size=self.runner.vocab_size,
            max_model_len=self.runner.max_model_len,
            kv_site=self.transports.site,
            load=self._reports.load(),
            orphans=self._orphans.request_ids,
        )

    # ---- messages ----------------------------------------------------------------------------------------------------

    def handle(self, peer: PeerId, message: wire.ToWorker | PeerGone, now_ns: int) -> None:
        """One message of a gateway. Never while a step is being computed."""
        match message:
            case (
                wire.Submit()
                | wire.Reserve()
                | wire.Prefill()
                | wire.SealBlocks()
                | wire.StartDecode()
                | wire.ComputeReserved()
            ):
                with self._only(request_of(message), peer):
                    self._take(peer, message, now_ns)
            case wire.Abort(request_id=request_id):
                self._drop(request_id, message.writer_active)
                self._note_quarantine(request_id, peer)
                self.links.send(peer, wire.Dropped(request_id))
            case wire.Release():
                self.scheduler.release(message.request_id)
                self._orphans.released(message.request_id)
            case wire.Fence():
                self._fence(peer, message)
            case wire.Drain():
                self._drain.ask()
            case wire.FollowCache():
                self._cache_feed.follow(peer)
            case wire.Ping():
                self.links.send(peer, wire.Pong(message.nonce))
            case PeerGone():
                self._lose_gateway(peer)
        self._reports.changed()

    def _take(self, peer: PeerId, message: Asked, now_ns: int) -> None:
        """What is asked for one request."""
        match message:
            case wire.Submit(request=request):
                self._accept(peer, request.request_id, self.scheduler.submit(request, message.samples, now_ns))
            case wire.Reserve(request=request):
                self._accept(peer, request.request_id, self.scheduler.reserve(request, now_ns))
            case wire.Prefill(request=request, reservation=reservation):
                path, num_found = message.path, message.num_found_tokens
                rejected = self._cannot_write(reservation, path) or self.scheduler.prefill_into(
                    request, reservation, now_ns, zero_copy=path.zero_copy, num_found_tokens=num_found
                )
                if rejected is None:
                    self._remote_prefills[request.request_id] = RemotePrefill(reservation, path)
                self._accept(peer, request.request_id, rejected)
            case wire.SealBlocks():
                self.scheduler.seal(message.request_id, message.num_tokens)
            case wire.StartDecode(baton=baton):
                self._end_reservation(baton.request_id)
                self._accept(peer, baton.request_id, self.scheduler.start_decode(baton, now_ns))
            case wire.ComputeReserved(request_id=request_id):
                self._end_reservation(request_id)
                self._accept(peer, request_id, self.scheduler.submit_reserved(request_id, message.samples, now_ns))

    def _accept(self, peer: PeerId, request_id: RequestId, rejected: Rejected | None) -> None:
        if rejected is None:
            self._owners[request_id] = peer
        else:
            self._owners.pop(request_id, None)
            self.links.send(peer, wire.Refused(request_id, rejected.code, rejected.reason))

    def _lose_gateway(self, peer: PeerId) -> None:
        """Its requests go; rooms into which somebody may still write are the other gateways' to release."""
        self._cache_feed.unfollow(peer)
        for request_id in [r for r, owner in self._owners.items() if owner == peer]:
            self._drop(request_id, writer_active=True)
            self._note_quarantine(request_id, peer)
        if self._orphans.lose(peer):
            for other in self.links.peer_ids:
                self.links.send(other, wire.Orphans(self._orphans.request_ids))

    def _note_quarantine(self, request_id: RequestId, keeper: PeerId) -> None:
        if self.scheduler.reservations.is_quarantined(request_id):
            self._orphans.quarantined(request_id, keeper)

    def _cannot_write(self, reservation: Reservation, path: KVPath) -> Rejected | None:
        """A gateway that has not heard yet that the receiver was replaced, or names a transport that is not here."""
        if reservation.epoch < self._fenced_epochs.get(reservation.worker_id, 0):
            return Rejected("worker_lost", f"{reservation.worker_id} was replaced")
        if path.transport not in self.transports:
            return Rejected("handoff_failed", f"This worker has no KV transport {path.transport!r}.")
        return None

    def _drop(self, request_id: RequestId, writer_active: bool) -> None:
        """Let go of a request in whatever phase it is. Idempotent."""
        leg = self._remote_prefills.pop(request_id, None)
        if leg is not None:
            self._transport_of(leg).cancel(leg.reservation)
        self._end_reservation(request_id)
        self.scheduler.abort(request_id, writer_active)
        self._owners.pop(request_id, None)

    def _fence(self, peer: PeerId, fence: wire.Fence) -> None:
        newest = max(fence.epoch, self._fenced_epochs.get(fence.worker_id, 0))
        self._fenced_epochs[fence.worker_id] = newest
        for request_id in self.scheduler.fence(fence.worker_id, newest):
            self._fail(request_id, "worker_lost", f"{fence.worker_id} was replaced")
        for request_id, leg in list(self._remote_prefills.items()):  # computed, but not yet sealed
            if leg.reservation.worker_id == fence.worker_id and leg.reservation.epoch < newest:
                self._fail(request_id, "worker_lost", f"{fence.worker_id} was replaced")
        self._drop_withdrawn_legs()
        self.links.send(peer, wire.Fenced(fence.worker_id, fence.epoch, fence.nonce))

    def _fail(self, request_id: RequestId, code: str, reason: str) -> None:
        owner = self._owners.get(request_id)
        self._drop(request_id, writer_active=False)
        if owner is not None:
            self.links.send(owner, wire.RequestFailed(request_id, code, reason))
        self._reports.changed()

    @contextmanager
    def _only(self, request_id: RequestId, asker: PeerId | None = None) -> Iterator[None]:
        """What is done here is done for one request: if it raises, that request is let go, and its gateway told.

        `asker`: whose request it is; None: the owner. A request that cannot even be let go ends the worker.
        """
        owner = self._owners.get(request_id) if asker is None else asker
        try:
            yield
        except Exception as error:
            code, reason = failure_of(error)
            log.exception("request %s ends with %s, the others go on", request_id, code)
            self._reports.num_request_faults += 1
            self._drop(request_id, writer_active=True)  # it may be at work; the gateway knows, and sends Release
            if owner is not None:
                self._note_quarantine(request_id, owner)
                self.links.send(owner, wire.RequestFailed(request_id, code, reason))
            self._reports.changed()

    # ---- room for others ---------------------------------------------------------------------------------------------

    def _send_grants(self, now_ns: int) -> None:
        for reservation in self.scheduler.take_grants(now_ns):
            with self._only(reservation.request_id):
                self._reservations[reservation.request_id] = reservation
                self.transports.reserve(reservation)
                self.links.send(self._owners[reservation.request_id], wire.Reserved(reservation))
            self._reports.changed()

    def _end_reservation(self, request_id: RequestId) -> None:
        """No writer may touch these blocks from here on."""
        reservation = self._reservations.pop(request_id, None)
        if reservation is not None:
            self.transports.release(reservation)

    # ---- prompts computed for others ---------------------------------------------------------------------------------

    def _transport_of(self, leg: RemotePrefill) -> KVTransport:
        return self.transports[leg.path.transport]

    def _drop_withdrawn_legs(self) -> None:
        for request_id, leg in list(self._remote_prefills.items()):
            with self._only(request_id):
                if not self._transport_of(leg).may_write(leg.reservation):
                    self._reports.num_refused_writes += 1
                    self._fail(request_id, "handoff_failed", "the reserved blocks were withdrawn")

    def _push_prefixes(self, outcome: StepOutcome) -> None:
        """Finished blocks travel while later chunks compute."""
        for prefix in outcome.prefixes:
            with self._only(prefix.request_id):
                leg = self._remote_prefills[prefix.request_id]
                transport, address = self._transport_of(leg), leg.path.address
                for first_index, block_ids in leg.advance(prefix, self.runner.layout.block_size):
                    transport.write(leg.reservation, address, first_index, block_ids)
                transport.seal(leg.reservation, address, prefix.num_tokens)
        if outcome.prefixes:
            self._take_transfer_events()

    def _take_transfer_events(self) -> None:
        for event in self.transports.poll():
            leg = self._remote_prefills.get(event.reservation.request_id)
            if leg is None or leg.reservation != event.reservation:
                continue
            with self._only(event.reservation.request_id):
                match event:
                    case TransferSealed():
                        self._sealed(leg, event)
                    case TransferFailed():
                        self._fail(event.reservation.request_id, "handoff_failed", event.reason)

    def _sealed(self, leg: RemotePrefill, event: TransferSealed) -> None:
        request_id = event.reservation.request_id
        self._reports.transferred_bytes += leg.seal(event.num_tokens) * self.runner.layout.bytes_per_token
        leg.transfer_s = event.transfer_s
        self.links.send(self._owners[request_id], wire.Sealed(request_id, event.num_tokens))

    def _end_sealed_legs(self) -> None:
        for request_id, leg in list(self._remote_prefills.items()):
            if leg.is_sealed:
                with self._only(request_id):
                    self._end_leg(request_id, leg)

    def _end_leg(self, request_id: RequestId, leg: RemotePrefill) -> None:
        self._transport_of(leg).cancel(leg.reservation)  # nothing is under way any more; its account is closed
        self.scheduler.finish_transfer(request_id)
        del self._remote_prefills[request_id]
        self._reports.transfer_s += leg.transfer_s
        num_bytes = leg.num_handed_tokens * self.runner.layout.bytes_per_token
        done = wire.PrefillDone(request_id, leg.num_sealed_tokens, num_bytes, leg.transfer_s)
        self.links.send(self._owners.pop(request_id), done)
        self._reports.changed()

    # ---- after a step ------------------------------------------------------------------------------------------------

    def _send_outputs(self, outcome: StepOutcome) -> None:
        """One message per gateway and step."""
        by_peer: dict[PeerId, list[TokenOutput]] = {}
        for output in outcome.outputs:
            owner = self._owners.get(output.request_id)
            if owner is not None:
                by_peer.setdefault(owner, []).append(output)
        self._reports.send_outputs(by_peer)
        for output in outcome.outputs:
            if output.finish_reason is not None and not self._holds(output.request_id):
                self._owners.pop(output.request_id, None)

    def _holds(self, request_id: RequestId) -> bool:
        return request_id in self._remote_prefills or self.scheduler.holds(request_id)

    def _recover_step(self, plan: StepPlan, error: Exception) -> StepResult:
        """A step raised: the requests that are the reason end with an error, the others' rows are computed."""
        recovered = execute_apart(self.runner, plan, error)
        for request_id, reason in recovered.failures.items():
            code = reason.code if isinstance(reason, StepFailed) else StepFailed.code
            self._fail(request_id, code, f"the engine failed in a step: {reason}")
        return recovered.result
