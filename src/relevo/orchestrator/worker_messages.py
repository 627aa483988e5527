"""Between the words of a handoff and those of the wire: one message per effect, one event per message. Where a message
cannot be sent, the event that its worker is gone."""

from __future__ import annotations

from dataclasses import dataclass

from relevo.core.baton import Baton
from relevo.core.errors import HandoffFailed
from relevo.core.handoff import KVPath
from relevo.core.ids import WorkerRef
from relevo.orchestrator.handoff_meter import HandoffMeter
from relevo.orchestrator.in_flight import InFlightRequest
from relevo.orchestrator.membership import Membership
from relevo.policy.handoff import effects, events
from relevo.wire import messages as wire

Send = (
    effects.SendReserve
    | effects.SendPrefill
    | effects.SendSeal
    | effects.SendStartDecode
    | effects.SendSubmit
    | effects.SendAbort
    | effects.SendRelease
)
Answer = wire.Reserved | wire.Sealed | wire.PrefillDone | wire.Dropped | wire.RequestFailed | wire.Refused


@dataclass(frozen=True, slots=True)
class WorkerMessages:
    membership: Membership
    meter: HandoffMeter

    def send(self, in_flight: InFlightRequest, effect: Send) -> events.WorkerDied | events.WorkerCut | None:
        """The event that follows at once, if it cannot be sent."""
        path = None
        if isinstance(effect, effects.SendPrefill):
            decode = effect.reservation.worker
            path = self.membership.kv_path(effect.worker, decode)
            if path is None:
                return self.lost(decode if self.membership.get(decode) is None else effect.worker, in_flight, True)
        elif isinstance(effect, effects.SendStartDecode):
            self.meter.baton_sent(in_flight, with_ticket=effect.ticket is not None)
        is_sent = self.membership.send(effect.worker, _message_for(effect, in_flight, path))
        return None if is_sent else self.lost(effect.worker, in_flight, True)

    def lost(
        self, worker: WorkerRef, in_flight: InFlightRequest, is_unsent: bool = False
    ) -> events.WorkerDied | events.WorkerCut:
        if self.membership.is_cut(worker):
            decode = in_flight.handoff.decode
            may_write = decode is not None and self.membership.share_memory(worker, decode.worker)
            return events.WorkerCut(worker, may_write, self.membership.has_left(worker))
        return events.WorkerDied(worker, has_left=self.membership.has_left(worker), is_unsent=is_unsent)


def event_of(worker: WorkerRef, answer: Answer) -> events.Event:
    match answer:
        case wire.Reserved():
            if (fault := answer.reservation.fault) is not None:
                reason = f"What {worker.worker_id} reserved is no room. {fault}"
                return events.Failed(worker, HandoffFailed.code, reason)
            return events.Granted(answer.reservation)
        case wire.Sealed():
            return events.Sealed(worker, answer.num_tokens)
        case wire.PrefillDone():
            return events.PrefillFinished(
                worker, answer.num_sealed_tokens, answer.transferred_bytes, answer.transfer_s, answer.ticket
            )
        case wire.Dropped():
            return events.Dropped(worker)
        case wire.RequestFailed() | wire.Refused():
            return events.Failed(worker, answer.code, answer.reason)


def _message_for(effect: Send, in_flight: InFlightRequest, path: KVPath | None = None) -> wire.ToWorker:
    """`path`: to the worker that granted the room, for SendPrefill."""
    request, handoff = in_flight.request, in_flight.handoff
    match effect:
        case effects.SendReserve():
            return wire.Reserve(request)
        case effects.SendPrefill():
            assert path is not None
            return wire.Prefill(request, effect.reservation, path, handoff.num_found_tokens)
        case effects.SendSeal():
            return wire.SealBlocks(request.request_id, effect.num_tokens)
        case effects.SendStartDecode():
            num_sealed_tokens = effect.num_sealed_tokens
            return wire.StartDecode(
                Baton(
                    request_id=request.request_id,
                    samples=handoff.samples,
                    num_sealed_tokens=num_sealed_tokens,
                    ticket=effect.ticket,
                )
            )
        case effects.SendSubmit():
            samples = handoff.samples if effect.resume else ()
            if effect.use_reservation:
                return wire.ComputeReserved(request.request_id, samples)
            return wire.Submit(request, samples)
        case effects.SendAbort():
            return wire.Abort(request.request_id, effect.writer_active)
        case effects.SendRelease():
            return wire.Release(request.request_id)
