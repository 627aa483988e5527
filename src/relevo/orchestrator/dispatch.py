"""Drives requests: carries out what `policy.handoff` asks for, over the links of `orchestrator.membership`.

Owns one `InFlightRequest` per request, from `start` until no worker holds anything of it, and the order of the calls.
Decides nothing: who may enter is `policy.admission`'s, who computes `policy.routing.router`'s, what comes next
`policy.handoff`'s. Everything runs on one thread and nothing waits, so that a simulated world drives it as an event
loop does; messages are handled as they arrive, in order. What raises over one request ends that request only.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Protocol

from relevo.core.decisions import Decide, Decision, unlogged
from relevo.core.errors import InternalError
from relevo.core.events import TokenOutput
from relevo.core.ids import BlockHash, RequestId, WorkerId, WorkerRef
from relevo.core.outcome import RequestEnd
from relevo.core.ports import Clock, Timers
from relevo.core.request import EngineRequest
from relevo.core.role import Role
from relevo.orchestrator.admission_queue import AdmissionMetrics, AdmissionQueue
from relevo.orchestrator.handoff_meter import HandoffMeter, HandoffMetrics
from relevo.orchestrator.in_flight import InFlightRequest
from relevo.orchestrator.insight import Insight, RunningRequest
from relevo.orchestrator.marks import Marks, told
from relevo.orchestrator.membership import Membership
from relevo.orchestrator.placement import Placement
from relevo.orchestrator.ports import EngineStatus, OutputSink
from relevo.orchestrator.roles import Roles
from relevo.orchestrator.routing import NO_ROUTE, Routing
from relevo.orchestrator.worker_messages import WorkerMessages, event_of
from relevo.policy.admission.admission import Admission
from relevo.policy.handoff import effects, events, machine
from relevo.policy.handoff.state import HandoffLimits, Phase
from relevo.policy.worker.prefix_cache import PromptHashes
from relevo.wire import messages as wire

log = logging.getLogger("relevo.gateway")

FAULT = events.EndRequested(
    RequestEnd.failed(InternalError.code, "the gateway failed over this request; its log says where")
)


class DispatchMetrics(AdmissionMetrics, HandoffMetrics, Protocol):
    def request_fault(self, model: str) -> None: ...


class Dispatcher:
    """The gateway's `TokenGenerator`, and the `MessageSink` of membership."""

    def __init__(
        self,
        *,
        membership: Membership,
        placement: Placement,
        admission: Admission,
        limits: HandoffLimits,
        model_name: str,
        metrics: DispatchMetrics,
        clock: Clock,
        timers: Timers,
        kill: Callable[[WorkerRef, str], None],
        hash_prompt: Callable[[EngineRequest, int], Sequence[BlockHash]],
        batch_limits: HandoffLimits | None = None,
        decide: Decide = unlogged,
        insight: Insight | None = None,
        on_ended: Callable[[InFlightRequest], None] | None = None,
    ) -> None:
        """`kill(worker, reason)` asks for the end of a worker's process. `hash_prompt(request, block_size)`: the blocks
        of a prompt that may be found in caches. `batch_limits`: of batch requests; None: the same as for all. `decide`
        is told what was decided, `insight` what happened, `on_ended` of each request that its client has the end of."""
        self._membership = membership
        self._placement = placement
        self._limits = {False: limits, True: batch_limits or limits}  # by: is it a batch request
        self._model_name = model_name
        self._metrics = metrics
        self._clock = clock
        self._timers = timers
        self._kill = kill
        self._hash_prompt = hash_prompt
        self._decide = decide
        self._on_ended = on_ended
        self._may_have_room = True  # what a message brought may let a request in that waits
        self._requests: dict[RequestId, InFlightRequest] = {}
        self._insight = insight or Insight()
        self._insight.running, self._insight.tenants = self.running, admission.tenants
        self._insight.decisions.tenant_of = self.tenant_of
        self._meter = HandoffMeter(metrics, placement, clock, model_name, self._insight)
        self._messages = WorkerMessages(membership, self._meter)
        self._marks = Marks(membership, clock)
        self._routing = Routing(placement, self._meter, self._marks, clock, decide, self._insight)
        self._queue = AdmissionQueue(
            requests=self._requests,
            admission=admission,
            placement=placement,
            clock=clock,
            metrics=metrics,
            model_name=model_name,
            let_in=lambda in_flight: self._advance(in_flight, events.LetIn()),
            turn_away=lambda in_flight, end: self._advance(in_flight, events.EndRequested(end)),
            decide=decide,
        )
        self._roles = Roles(membership, decide)
        membership.report_to(self)

    # ---- TokenGenerator ----------------------------------------------------------------------------------------------

    def start(self, request: EngineRequest, sink: OutputSink) -> InFlightRequest:
        """See `orchestrator.ports.RequestStarter`."""
        assert request.request_id not in self._requests, "started twice"
        handoff = machine.start(
            request.request_id,
            num_prompt_tokens=len(request.prompt_token_ids),
            num_samples=request.sampling.n,
            limits=self._limits[request.terms.is_batch],
        )
        in_flight = InFlightRequest(request=request, sink=sink, handoff=handoff, end_with=self._end)
        self._requests[request.request_id] = in_flight
        try:
            in_flight.prompt_hashes = PromptHashes(partial(self._hash_prompt, request))
            self._queue.enter(in_flight)
        except Exception as fault:
            self._break_off(in_flight, fault)
        self._arm(in_flight)
        return in_flight

    def drain(self, worker_id: str) -> bool:
        return self._membership.drain(WorkerId(worker_id))

    def set_roles(self, roles: Mapping[str, Role], reason: str) -> None:
        """See `orchestrator.ports.TokenGenerator`."""
        self._roles.change({WorkerId(worker_id): role for worker_id, role in roles.items()}, reason)

    def status(self) -> EngineStatus:
        members = self._membership.members
        ready = self._membership.is_complete and any(member.is_ready for member in members)
        reasons = "; ".join(f"{m.worker_id}: {m.why_not_ready}" for m in members if not m.is_ready)
        waiting = (Phase.WAITING, Phase.ROUTING, Phase.QUEUED)
        return EngineStatus(
            ready=ready,
            reason="" if ready else reasons,
            num_queued=sum(1 for in_flight in self._requests.values() if in_flight.handoff.phase in waiting),
            num_in_flight=len(self._requests),
            workers=self._membership.statuses(),
            lines=self._queue.statuses(),
        )

    def running(self, most: int) -> list[RunningRequest]:
        """The oldest of those that have not ended."""
        running = (each for each in self._requests.values() if not each.handoff.has_ended)
        return [
            RunningRequest(
                request_id=in_flight.request_id,
                tenant=in_flight.request.terms.tenant,
                phase=in_flight.handoff.phase,
                arrived_at_ns=in_flight.request.arrived_at_ns,
                num_prompt_tokens=in_flight.handoff.num_prompt_tokens,
                num_output_tokens=in_flight.num_output_tokens,
                first_written_at_ns=in_flight.timeline.first_written_at_ns,
            )
            for in_flight in islice(running, most)
        ]

    def tenant_of(self, request_id: RequestId) -> str:
        """Of a request that is in flight."""
        in_flight = self._requests.get(request_id)
        return in_flight.request.terms.tenant if in_flight is not None else ""

    @property
    def num_in_flight(self) -> int:
        """Requests of which a worker may still hold something."""
        return len(self._requests)

    def _end(self, in_flight: InFlightRequest, end: RequestEnd) -> None:
        if not in_flight.handoff.has_ended:
            self._advance(in_flight, events.EndRequested(end))
            self._pump()

    # ---- MessageSink -------------------------------------------------------------------------------------------------

    def on_message(self, worker: WorkerRef, message: wire.ToGateway) -> None:
        is_progress = isinstance(message, wire.StepOutputs | wire.LoadReport)
        self._may_have_room = not is_progress or self._membership.may_have_room(worker)
        self.take(worker, message)
        if self._may_have_room:
            self._pump()

    def take(self, worker: WorkerRef, message: wire.ToGateway) -> None:
        """What it means for the request that it is about; no other is let in for it."""
        match message:
            case wire.StepOutputs():
                now_ns = self._clock.now_ns()
                for output in message.outputs:
                    in_flight = self._requests.get(output.request_id)
                    if in_flight is not None and output.prompt_scores is not None:
                        self._tell_scores(in_flight, output)
                    elif in_flight is not None and not self._pass_on(in_flight, worker, output, message, now_ns):
                        self._advance(in_flight, events.Tokens(worker, output))
            case wire.Reserved():
                request_id = message.reservation.request_id
                if message.reservation.fault is not None:  # it may hold one all the same
                    self._membership.send(worker, wire.Abort(request_id))
                self._tell(request_id, event_of(worker, message))
            case wire.Sealed() | wire.PrefillDone() | wire.Dropped() | wire.RequestFailed() | wire.Refused():
                self._tell(message.request_id, event_of(worker, message))
            case wire.Preempted():
                for request_id in message.request_ids:
                    if (preempted := self._requests.get(request_id)) is not None:
                        self._marks.preempted(preempted, worker)
            case wire.CacheEvents() | wire.CacheSnapshot():
                self._placement.take_cache_report(worker, message)

    def on_worker_ready(self, worker: WorkerRef) -> None:
        self._decide(Decision.READY, worker=worker.worker_id, epoch=worker.epoch)
        self._placement.follow_cache(worker)
        for in_flight in list(self._requests.values()):
            route = in_flight.unpark()
            if route is not None:
                self._carry_out(in_flight, (route,))
                self._arm(in_flight)
        self._pump()

    def on_worker_gone(self, worker: WorkerRef) -> None:
        self._decide(Decision.LOST, worker=worker.worker_id, epoch=worker.epoch)
        self._placement.forget(worker)
        self._insight.forget(worker)
        self._moved_on(worker)

    def on_worker_cut(self, worker: WorkerRef) -> None:
        """`on_worker_gone` without the certainty that nothing is written any more; that follows."""
        self._decide(Decision.LOST, worker=worker.worker_id, epoch=worker.epoch)
        self._placement.forget(worker)
        self._moved_on(worker)

    def _moved_on(self, worker: WorkerRef) -> None:
        for in_flight in list(self._requests.values()):
            self._advance(in_flight, self._messages.lost(worker, in_flight))
            if in_flight.parked is not None and not self._placement.may_wait():
                in_flight.unpark()
                self._advance(in_flight, NO_ROUTE)
        self._pump()

    def on_worker_leaving(self, worker: WorkerRef) -> None:
        self._decide(Decision.LEAVE, worker=worker.worker_id, epoch=worker.epoch)

    def on_worker_silent(self, worker: WorkerRef, reason: str) -> None:
        self._end_worker(worker, reason)

    def on_heard(self) -> None:
        """Another gateway over the same workers told something: there may be room now."""
        self._pump()

    def _pass_on(
        self,
        in_flight: InFlightRequest,
        worker: WorkerRef,
        output: TokenOutput,
        message: wire.StepOutputs,
        now_ns: int,
    ) -> bool:
        """What nearly every token needs, and no more. False: it is an event like any other."""
        if in_flight.handoff_times.is_unmeasured or not in_flight.is_started or in_flight.is_driven:
            return False
        if not machine.take_routine_tokens(in_flight.handoff, worker, output, now_ns):
            return False
        told(in_flight, message, now_ns)
        try:
            if self._placement.gave_tokens(output.request_id, len(output.tokens)):
                self._may_have_room = True
            self._insight.gave(in_flight.last_output, worker, output, now_ns)
            in_flight.sink.on_output(output)
        except Exception as fault:
            self._break_off(in_flight, fault)
        return True

    def _tell_scores(self, in_flight: InFlightRequest, output: TokenOutput) -> None:
        """They are facts about the prompt, whichever worker computed them: no event of the handoff."""
        try:
            in_flight.sink.on_output(output)
        except Exception as fault:
            self._break_off(in_flight, fault)

    def _tell(self, request_id: RequestId, event: events.Event) -> None:
        in_flight = self._requests.get(request_id)
        if in_flight is not None:
            self._advance(in_flight, event)

    def _pump(self) -> None:
        """What raises while the line moves on is asked again with the next message: it ends no connection."""
        try:
            self._queue.pump()
        except Exception:
            log.exception("the line could not be moved on")

    # ---- the state machine's driver ----------------------------------------------------------------------------------

    def _advance(self, in_flight: InFlightRequest, event: events.Event) -> None:
        """One event after the other: what a sink, or an answer that is known at once, adds meanwhile comes after all
        effects of the event before it."""
        if in_flight.is_driven:
            in_flight.events.append(event)
            return
        in_flight.is_driven = True
        self._apply(in_flight, event)
        while in_flight.events:
            self._apply(in_flight, in_flight.events.popleft())
        in_flight.is_driven = False

    def _apply(self, in_flight: InFlightRequest, event: events.Event) -> None:
        before = in_flight.handoff
        if before.is_gone:
            return
        asked: tuple[effects.Effect, ...] = ()
        fault: Exception | None = None
        try:
            now_ns = self._clock.now_ns()
            in_flight.handoff, asked = machine.advance(before, event, now_ns)
            if isinstance(event, events.Tokens) and asked and isinstance(asked[0], effects.Emit):
                self._insight.gave(in_flight.last_output, event.worker, event.output, now_ns)
            self._marks.heard(in_flight, before, event, asked, now_ns)
            makes_room = self._placement.observe(in_flight, event)
            self._may_have_room = self._may_have_room or makes_room or in_flight.handoff.has_ended
            self._meter.heard(in_flight, event)
        except Exception as error:
            fault = error
            if event is FAULT and not in_flight.handoff.has_ended:  # it is the state machine that raises
                in_flight.handoff = replace(before, phase=Phase.GONE, has_ended=True)
                asked = (FAULT.end,)
        self._carry_out(in_flight, asked, fault)
        if in_flight.handoff.is_gone:
            self._forget(in_flight)
        elif in_flight.handoff is not before:
            self._arm(in_flight)

    def _carry_out(
        self, in_flight: InFlightRequest, asked: Sequence[effects.Effect], fault: Exception | None = None
    ) -> None:
        """Effects in order. One that raises keeps none of the others back (a worker may be waiting for one); then the
        request ends."""
        for effect in asked:
            try:
                answer = self._carry_out_one(in_flight, effect)
            except Exception as error:
                fault = fault or error
            else:
                if answer is not None:
                    self._advance(in_flight, answer)
        if fault is not None:
            self._break_off(in_flight, fault)

    def _carry_out_one(self, in_flight: InFlightRequest, effect: effects.Effect) -> events.Event | None:
        """The answer, if it is known at once."""
        match effect:
            case effects.Emit(output=output):
                self._emit(in_flight, output)
            case RequestEnd():
                self._finish(in_flight, effect)
            case effects.KillWorker():
                self._end_worker(effect.worker, effect.reason)
            case effects.Route():
                return self._routing.route(in_flight, effect)
            case effects.ChoosePrefill():
                return self._routing.choose_prefill(in_flight, effect)
            case _:
                self._marks.sending(in_flight, effect)
                return self._messages.send(in_flight, effect)
        return None

    def _break_off(self, in_flight: InFlightRequest, fault: Exception) -> None:
        """Code of this process raised over a request: it ends, with one line of the log."""
        if not in_flight.is_faulty:
            in_flight.is_faulty = True
            log.error("request %s ends, the others go on", in_flight.request_id, exc_info=fault)
            self._metrics.request_fault(self._model_name)
            self._advance(in_flight, FAULT)

    def _emit(self, in_flight: InFlightRequest, output: TokenOutput) -> None:
        if not in_flight.is_started:
            in_flight.is_started = True
            self._queue.started(in_flight)
        in_flight.sink.on_output(output)

    def _end_worker(self, worker: WorkerRef, reason: str) -> None:
        self._decide(Decision.FENCE, worker=worker.worker_id, epoch=worker.epoch, reason=reason)
        self._kill(worker, reason)

    # ---- waiting, ending, forgetting ---------------------------------------------------------------------------------

    def _arm(self, in_flight: InFlightRequest) -> None:
        if not in_flight.handoff.is_gone:
            in_flight.arm(self._timers, self._on_time)

    def _on_time(self, in_flight: InFlightRequest) -> None:
        """One of its deadlines is over, or a token has moved it since the timer was set."""
        now_ns = self._clock.now_ns()
        try:
            if _is_over(in_flight.admission_due_at_ns, now_ns):
                self._queue.look_at(in_flight)
            if _is_over(in_flight.parked_until_ns, now_ns):
                in_flight.unpark()
                self._advance(in_flight, NO_ROUTE)
            if _is_over(in_flight.handoff.due_at_ns, now_ns):
                self._advance(in_flight, events.Tick())
        except Exception as fault:
            self._break_off(in_flight, fault)
        self._arm(in_flight)
        self._pump()

    def _finish(self, in_flight: InFlightRequest, end: RequestEnd) -> None:
        """The client has its end; workers may have yet to let go."""
        in_flight.unpark()
        self._queue.leave(in_flight)
        self._marks.ended(in_flight)
        self._meter.ended(in_flight, end.outcome)
        self._decide(
            Decision.END,
            in_flight.request_id,
            cause=end.cause.value,
            code=end.code or "",
            num_tokens=in_flight.num_output_tokens,
            num_failures=in_flight.handoff.num_failures,
        )
        if self._on_ended is not None:
            self._on_ended(in_flight)
        in_flight.sink.on_end(end)

    def _forget(self, in_flight: InFlightRequest) -> None:
        in_flight.disarm()
        self._requests.pop(in_flight.request_id, None)
        self._placement.end(in_flight.request_id)


def _is_over(at_ns: int | None, now_ns: int) -> bool:
    return at_ns is not None and now_ns >= at_ns
