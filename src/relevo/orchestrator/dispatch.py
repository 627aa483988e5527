"""Drives requests: carries out what `policy.handoff` asks for, over the connections of `orchestrator.membership`.

Owns one `InFlightRequest` per request, from admission until no worker holds anything of it, and the order of the calls.
Decides nothing: who may enter is `policy.admission`'s, who computes `policy.routing.router`'s, what comes next
`policy.handoff`'s. Everything runs on the event loop's thread; messages are handled as they arrive, in order. What
raises while one request is handled ends that request only.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

from relevo.core import errors
from relevo.core.baton import Baton
from relevo.core.events import TokenOutput
from relevo.core.ids import RequestId, WorkerId, WorkerRef
from relevo.core.ports import Clock
from relevo.core.request import EngineRequest
from relevo.orchestrator.admission_queue import AdmissionQueue
from relevo.orchestrator.errors_by_code import error_for
from relevo.orchestrator.membership import Membership
from relevo.orchestrator.outbox import Outbox
from relevo.orchestrator.placement import Placement
from relevo.orchestrator.ports import EngineStatus
from relevo.orchestrator.route_notes import RouteNotes
from relevo.policy.admission.admission import Admission, Refusal
from relevo.policy.handoff import machine as h
from relevo.wire import messages as wire

log = logging.getLogger("relevo.gateway")


class HandoffMetrics(Protocol):
    def admission_rejected(self, model: str, reason: str) -> None: ...

    def deadline_missed(self, model: str, when: str) -> None: ...

    def request_fault(self, model: str) -> None: ...

    def handoff_finished(
        self, model: str, outcome: str, handoff_s: float, transferred_bytes: int, transfer_s: float
    ) -> None: ...


@dataclass(slots=True)
class InFlightRequest:
    """One request on its way. `outbox` carries what the client gets, last of all one End."""

    request: EngineRequest
    state: h.HandoffState
    opening: tuple[h.Effect, ...]  # carried out when it is its turn
    refused_by: str = ""  # the limit that ended it, if one did
    outbox: Outbox[TokenOutput | h.End] = field(default_factory=Outbox)
    is_faulty: bool = False  # code of ours raised over it; said once
    is_started: bool = False  # the door knows of its first token
    timer: asyncio.TimerHandle | None = None  # of `state`
    parking: asyncio.TimerHandle | None = None  # while it waits for a worker to become ready
    is_split: bool = False  # a handoff is under way, its outcome not yet counted
    is_handoff_open: bool = False  # its cost to the client is not yet measured
    first_token_at_ns: int | None = None  # of the prefill worker


class Dispatcher:
    """The gateway's `TokenGenerator`."""

    def __init__(
        self,
        *,
        membership: Membership,
        placement: Placement,
        admission: Admission,
        limits: h.HandoffLimits,
        block_size: int,
        model_name: str,
        metrics: HandoffMetrics,
        clock: Clock,
        notes: RouteNotes,
        fence: Callable[[WorkerRef, str], None],
        batch_limits: h.HandoffLimits | None = None,
    ) -> None:
        """`batch_limits`: of batch requests; None: the same as for everybody."""
        self._membership = membership
        self._placement = placement
        self._limits = {False: limits, True: batch_limits or limits}  # by: is it a batch request
        self._block_size = block_size
        self._model_name = model_name
        self._metrics = metrics
        self._clock = clock
        self._notes = notes
        self._fence = fence
        self._in_flight: dict[RequestId, InFlightRequest] = {}
        self._parked: dict[RequestId, h.Route] = {}  # wait for a worker to become ready
        self._unfollowed: set[WorkerRef] = set()  # whose cache reports have a gap; a snapshot is on its way
        self._queue = AdmissionQueue(
            admission=admission,
            placement=placement,
            clock=clock,
            metrics=metrics,
            notes=notes,
            model_name=model_name,
            let_in=self._let_in,
            turn_away=self._turn_away,
        )
        self.ready = asyncio.Event()  # every configured worker has been there

    # ---- TokenGenerator ----------------------------------------------------------------------------------------------

    async def generate(self, request: EngineRequest) -> AsyncGenerator[TokenOutput, None]:
        """See `orchestrator.ports.TokenGenerator`."""
        flight = self._admit(request)
        try:
            while True:
                item = await flight.outbox.take()
                if isinstance(item, h.End):
                    if item.outcome is h.Outcome.FAILED:
                        raise error_for(item.code, item.reason, item.retry_after_s, flight.refused_by)
                    return
                yield item
        finally:
            self._advance(flight, h.ClientGone())  # harmless after the end
            self._leave(flight)
            self._pump()

    def drain(self, worker_id: str) -> bool:
        return self._membership.drain(WorkerId(worker_id))

    def status(self) -> EngineStatus:
        workers = self._membership.statuses()
        ready = any(worker.ready for worker in workers)
        reasons = "; ".join(f"{m.worker_id}: {m.why_not_ready}" for m in self._membership.members if not m.is_ready)
        return EngineStatus(
            ready=ready and all(worker.epoch > 0 for worker in workers),
            reason="" if ready else reasons,
            num_queued=self._num_queued(),
            num_in_flight=len(self._in_flight),
            workers=workers,
            lines=self._queue.statuses(),
        )

    @property
    def num_in_flight(self) -> int:
        """Requests of which a worker may still hold something."""
        return len(self._in_flight)

    def _num_queued(self) -> int:
        waiting = (h.Phase.ROUTING, h.Phase.QUEUED)
        return sum(1 for flight in self._in_flight.values() if flight.state.phase in waiting)

    def _admit(self, request: EngineRequest) -> InFlightRequest:
        state, opening = h.start(
            request.request_id,
            num_prompt_tokens=len(request.prompt_token_ids),
            num_samples=request.sampling.n,
            block_size=self._block_size,
            limits=self._limits[request.terms.is_batch],
        )
        flight = self._in_flight[request.request_id] = InFlightRequest(request, state, opening)
        try:
            self._queue.enter(request)
        except errors.CapacityError:
            del self._in_flight[request.request_id]
            raise
        except Exception:  # not let in, or only in part
            del self._in_flight[request.request_id]
            self._leave(flight)
            self._placement.end(request.request_id)
            raise
        return flight

    def _let_in(self, request_id: RequestId) -> None:
        flight = self._in_flight[request_id]
        self._carry_out(flight, flight.opening)

    def _turn_away(self, refusal: Refusal) -> None:
        flight = self._in_flight.get(refusal.request_id)
        if flight is not None:
            flight.refused_by = refusal.limit
            self._advance(flight, h.TimeOver(refusal.code, refusal.reason, refusal.retry_after_s))

    def _leave(self, flight: InFlightRequest) -> None:
        """It takes no place any more. Idempotent."""
        num_output_tokens = sum(len(sample.output_token_ids) for sample in flight.state.samples)
        self._queue.leave(flight.request.request_id, num_output_tokens)

    # ---- MessageSink -------------------------------------------------------------------------------------------------

    def on_message(self, worker: WorkerRef, message: wire.ToGateway) -> None:
        match message:
            case wire.StepOutputs():
                for output in message.outputs:
                    self._on_event(output.request_id, h.Tokens(worker, output))
            case wire.Reserved(reservation=reservation):
                self._on_event(reservation.request_id, h.Granted(reservation))
            case wire.Sealed():
                self._on_event(message.request_id, h.Sealed(worker, message.num_tokens))
            case wire.PrefillDone():
                self._on_event(
                    message.request_id,
                    h.PrefillFinished(worker, message.num_sealed_tokens, message.transferred_bytes, message.transfer_s),
                )
            case wire.Dropped():
                self._on_event(message.request_id, h.Dropped(worker))
            case wire.CacheEvents() | wire.CacheSnapshot():
                self._on_cache_report(worker, message)
            case wire.RequestFailed() | wire.Refused():
                self._on_event(message.request_id, h.Failed(worker, message.code, message.reason))
        self._pump()

    def on_worker_ready(self, worker: WorkerRef) -> None:
        self._membership.send(worker, wire.FollowCache())
        if self.status().ready:
            self.ready.set()
        for request_id, route in list(self._parked.items()):
            flight = self._in_flight[request_id]
            self._unpark(flight)
            self._carry_out(flight, (route,))
        self._pump()

    def _on_cache_report(self, worker: WorkerRef, report: wire.CacheEvents | wire.CacheSnapshot) -> None:
        is_whole = self._placement.take_cache_report(worker, report)
        if is_whole:
            self._unfollowed.discard(worker)
        elif worker not in self._unfollowed:  # asked once; until the snapshot comes nothing else is believed
            self._unfollowed.add(worker)
            self._membership.send(worker, wire.FollowCache())

    def on_worker_gone(self, worker: WorkerRef) -> None:
        self._placement.forget(worker)
        self._unfollowed.discard(worker)
        for flight in list(self._in_flight.values()):
            self._advance(flight, self._lost(worker))
        self._pump()

    def on_heard(self) -> None:
        """Another gateway over the same workers told something: there may be room now."""
        self._pump()

    def _pump(self) -> None:
        """What raises while the line moves on is asked again with the next message: it ends no connection."""
        try:
            self._queue.pump()
        except Exception:
            log.exception("the line could not be moved on")

    def on_worker_silent(self, worker: WorkerRef, reason: str) -> None:
        self._fence(worker, reason)

    def _on_event(self, request_id: RequestId, event: h.Event) -> None:
        flight = self._in_flight.get(request_id)
        if flight is not None:
            self._advance(flight, event)

    # ---- the state machine's driver ----------------------------------------------------------------------------------

    def _advance(self, flight: InFlightRequest, event: h.Event) -> None:
        effects: tuple[h.Effect, ...] = ()
        fault: Exception | None = None
        try:
            flight.state, effects = h.advance(flight.state, event, self._clock.now_ns())
            self._placement.observe(flight.request.request_id, event)
            self._measure(flight, event)
        except Exception as error:
            fault = error
        self._carry_out(flight, effects, fault)

    def _carry_out(
        self, flight: InFlightRequest, effects: tuple[h.Effect, ...], fault: Exception | None = None
    ) -> None:
        """Effects in order; answers that are known at once are fed back after them. One that raises keeps none of the
        others back (a worker may be waiting for one); then the request ends."""
        answers: deque[h.Event] = deque()
        for effect in effects:
            try:
                answer = self._carry_out_one(flight, effect)
            except Exception as error:
                fault = fault or error
            else:
                answers.extend([answer] if answer is not None else [])
        if flight.state.is_gone:
            self._forget(flight)
        while answers:
            self._advance(flight, answers.popleft())
        if fault is not None:
            self._break_off(flight, fault)

    def _break_off(self, flight: InFlightRequest, fault: Exception) -> None:
        """Code of this process raised over a request: it ends, with one line of the log."""
        if flight.is_faulty:
            return
        flight.is_faulty = True
        request_id, reason = flight.request.request_id, "the gateway failed over this request; its log says where"
        log.error("request %s ends, the others go on", request_id, exc_info=fault)
        self._advance(flight, h.TimeOver(errors.InternalError.code, reason))
        if not flight.state.has_ended:  # it is the state machine that raises
            self._finish(flight, h.End(outcome=h.Outcome.FAILED, code=errors.InternalError.code, reason=reason))
        self._metrics.request_fault(self._model_name)

    def _carry_out_one(self, flight: InFlightRequest, effect: h.Effect) -> h.Event | None:
        request = flight.request
        match effect:
            case h.Emit(output=output):
                if not flight.is_started:
                    flight.is_started = True
                    self._queue.started(request.request_id)
                flight.outbox.put(output)
            case h.End():
                self._finish(flight, effect)
            case h.Route():
                return self._route(flight, effect)
            case h.ChoosePrefill():
                return self._choose_prefill(flight, effect)
            case h.ArmTimer(at_ns=at_ns):
                self._arm(flight, at_ns)
            case h.FenceWorker():
                self._fence(effect.worker, effect.reason)
            case h.SendReserve(worker=worker):
                return self._send(worker, wire.Reserve(request))
            case h.SendPrefill(worker=worker):
                decode = WorkerRef(effect.reservation.worker_id, effect.reservation.epoch)
                path = self._membership.kv_path(worker, decode)
                if path is None:
                    return self._lost(decode if self._membership.get(decode) is None else worker, is_unsent=True)
                num_found = flight.state.num_found_tokens
                return self._send(worker, wire.Prefill(request, effect.reservation, path, num_found))
            case h.SendSeal(worker=worker):
                return self._send(worker, wire.SealBlocks(request.request_id, effect.num_tokens))
            case h.SendStartDecode(worker=worker):
                self._count_handoff(flight)
                samples, num_sealed = flight.state.samples, effect.num_sealed_tokens
                baton = Baton(request_id=request.request_id, samples=samples, num_sealed_tokens=num_sealed)
                return self._send(worker, wire.StartDecode(baton))
            case h.SendSubmit(worker=worker):
                samples = flight.state.samples if effect.resume else ()
                if effect.use_reservation:
                    return self._send(worker, wire.ComputeReserved(request.request_id, samples))
                return self._send(worker, wire.Submit(request, samples))
            case h.AskDrain(worker=worker):
                return self._send(worker, wire.Abort(request.request_id, effect.writer_active))
            case h.SendRelease(worker=worker):
                return self._send(worker, wire.Release(request.request_id))
        return None

    def _send(self, worker: WorkerRef, message: wire.ToWorker) -> h.Event | None:
        return None if self._membership.send(worker, message) else self._lost(worker, is_unsent=True)

    def _lost(self, worker: WorkerRef, *, is_unsent: bool = False) -> h.WorkerDied:
        return h.WorkerDied(worker, has_left=self._membership.has_left(worker), is_unsent=is_unsent)

    def _route(self, flight: InFlightRequest, route: h.Route) -> h.Event | None:
        choice = self._placement.choose_decode(flight.request, route.exclude)
        if choice is None:
            if not self._placement.may_wait():
                return self._no_route()
            self._park(flight, route)
            return None
        request_id = flight.request.request_id
        log.debug("%s: decode on %s: %s", request_id, choice.worker.worker_id, choice.reason)
        self._notes.add(request_id, f"decode {choice.worker.worker_id}: {choice.reason}")
        flight.is_split = flight.is_handoff_open = choice.split and not route.resume
        flight.first_token_at_ns = None
        return h.Routed(choice.worker, flight.is_split)

    def _park(self, flight: InFlightRequest, route: h.Route) -> None:
        """Nobody is ready: wait for a worker to join, as long as a request may wait for room."""
        request_id = flight.request.request_id
        self._unpark(flight)
        self._parked[request_id] = replace(route, exclude=())
        queue_s = flight.state.limits.queue_s
        wait_s = queue_s if queue_s is not None else 60.0
        flight.parking = asyncio.get_running_loop().call_later(wait_s, self._give_up, flight)

    def _unpark(self, flight: InFlightRequest) -> None:
        self._parked.pop(flight.request.request_id, None)
        if flight.parking is not None:
            flight.parking.cancel()
            flight.parking = None

    def _give_up(self, flight: InFlightRequest) -> None:
        self._unpark(flight)
        self._advance(flight, self._no_route())

    def _no_route(self) -> h.NoRoute:
        reason = "no worker became ready in time; see /ready for the reason"
        return h.NoRoute(errors.NoWorker.code, reason, retry_after_s=5.0)

    def _choose_prefill(self, flight: InFlightRequest, effect: h.ChoosePrefill) -> h.Event:
        decode = WorkerRef(effect.reservation.worker_id, effect.reservation.epoch)
        choice = self._placement.choose_prefill(flight.request, decode, effect.num_uncached_tokens, effect.exclude)
        request_id, worker_id = flight.request.request_id, (choice.worker or decode).worker_id
        log.debug("%s: prompt on %s: %s", request_id, worker_id, choice.reason)
        self._notes.add(request_id, f"prompt {worker_id}: {choice.reason}")
        if choice.worker is None:
            self._metrics.handoff_finished(self._model_name, "local", 0.0, 0, 0.0)
            flight.is_split = flight.is_handoff_open = False
        return h.PrefillChosen(choice.worker)

    def _arm(self, flight: InFlightRequest, at_ns: int) -> None:
        if flight.timer is not None:
            flight.timer.cancel()
        delay_s = max(0.0, (at_ns - self._clock.now_ns()) / 1e9)
        flight.timer = asyncio.get_running_loop().call_later(
            delay_s, self._on_event, flight.request.request_id, h.Tick()
        )

    # ---- measuring and forgetting ------------------------------------------------------------------------------------

    def _measure(self, flight: InFlightRequest, event: h.Event) -> None:
        """For the router: first token of the prefill worker to first token of the decode worker."""
        if not flight.is_handoff_open or not isinstance(event, h.Tokens) or flight.state.decode is None:
            return
        now_ns = self._clock.now_ns()
        if event.worker != flight.state.decode.worker:
            flight.first_token_at_ns = flight.first_token_at_ns or now_ns
        elif flight.first_token_at_ns is not None:
            self._placement.handoff_took((now_ns - flight.first_token_at_ns) / 1e9, event.worker)
            flight.is_handoff_open = False

    def _count_handoff(self, flight: InFlightRequest) -> None:
        """For people: first token of the prefill worker here to the baton on its way, all KV sealed."""
        state, now_ns = flight.state, self._clock.now_ns()
        handoff_s = (now_ns - (flight.first_token_at_ns or now_ns)) / 1e9
        self._metrics.handoff_finished(
            self._model_name, "completed", handoff_s, state.transferred_bytes, state.transfer_s
        )
        flight.is_split = False

    def _finish(self, flight: InFlightRequest, end: h.End) -> None:
        flight.outbox.put(end)
        self._unpark(flight)
        if flight.is_split and end.outcome is not h.Outcome.FINISHED:
            self._metrics.handoff_finished(self._model_name, str(end.outcome), 0.0, 0, 0.0)
        flight.is_split = False

    def _forget(self, flight: InFlightRequest) -> None:
        if flight.timer is not None:
            flight.timer.cancel()
        self._in_flight.pop(flight.request.request_id, None)
        self._placement.end(flight.request.request_id)
        self._leave(flight)
