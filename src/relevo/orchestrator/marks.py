"""Writes the timeline of a request in flight: what its dispatcher and its router did, and what its workers said.

Owns which event begins and which ends a leg. Decides nothing, and nothing is decided from what is written here. What a
token costs is `told` and little else; the HTTP side has marks of its own (`gateway.generation.run`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from relevo.core.events import StepCounters, WorkerLoad
from relevo.core.ids import WorkerRef
from relevo.core.ports import Clock
from relevo.core.timeline import Gap, Leg, Preemption
from relevo.orchestrator.in_flight import InFlightRequest
from relevo.orchestrator.membership import Membership
from relevo.policy.handoff import effects, events
from relevo.policy.handoff.recovery import LETTING_GO
from relevo.policy.handoff.state import HandoffState
from relevo.policy.routing.worker_choice import Choice, PrefillChoice
from relevo.wire import messages as wire

MAX_PREEMPTIONS = 8  # arbitrary: so many are told one by one
KEPT_ROOM = "the room that it granted is kept"
MAX_LEGS = 16  # arbitrary, far above what `HandoffLimits.max_attempts` lets fail


class Reported(Protocol):
    """What a worker said of itself after a step."""

    @property
    def load(self) -> WorkerLoad: ...

    @property
    def counters(self) -> StepCounters: ...


@dataclass(frozen=True, slots=True)
class Marks:
    membership: Membership
    clock: Clock

    # ---- its way -----------------------------------------------------------------------------------------------------

    def routed(self, in_flight: InFlightRequest, choice: Choice, *, is_split: bool) -> None:
        leg = Leg(
            routed_at_ns=self.clock.now_ns(),
            decode=choice.worker,
            reason=choice.reason,
            is_split=is_split,
            is_resumed=in_flight.handoff.has_emitted,
            num_hit_tokens=choice.num_hit_tokens,
            num_lost_hit_tokens=choice.lost.num_tokens,
            hits_lost=choice.lost.reason,
            decode_load=self._load(choice.worker),
        )
        if not is_split:
            leg.prefill, leg.asked_counters = choice.worker, self._counters(choice.worker)
        self._begin(in_flight, leg)

    def prefill_chosen(
        self, in_flight: InFlightRequest, decode: WorkerRef, num_uncached_tokens: int, choice: PrefillChoice
    ) -> None:
        """`num_uncached_tokens`: on the decode worker. Cached tokens of the other worker are not lost."""
        leg, worker = self._open_leg(in_flight, decode, KEPT_ROOM), choice.worker or decode
        leg.prefill, leg.prefill_reason, leg.prefill_load = worker, choice.reason, self._load(worker)
        leg.asked_counters = self._counters(worker)
        leg.link = choice.path.link if choice.path is not None else None
        num_found = num_uncached_tokens - choice.num_uncached_tokens
        leg.num_lost_hit_tokens = max(0, leg.num_lost_hit_tokens - max(0, num_found))
        if not leg.num_lost_hit_tokens:
            leg.hits_lost = None

    def sending(self, in_flight: InFlightRequest, effect: effects.Effect) -> None:
        """The two that begin or go on with something on the decode worker."""
        if isinstance(effect, effects.SendStartDecode):
            leg = self._open_leg(in_flight, effect.worker, "")
            leg.decode_started_at_ns, leg.started_counters = self.clock.now_ns(), self._counters(effect.worker)
        elif isinstance(effect, effects.SendSubmit) and effect.use_reservation:
            leg = self._open_leg(in_flight, effect.worker, KEPT_ROOM)
            leg.prefill = leg.prefill or effect.worker
            leg.asked_counters = leg.asked_counters or self._counters(effect.worker)

    def heard(
        self,
        in_flight: InFlightRequest,
        before: HandoffState,
        event: events.Event,
        asked: Sequence[effects.Effect],
        now_ns: int,
    ) -> None:
        """An event was taken, and not carried out: `before` is where the request stood until then."""
        after = in_flight.handoff
        match event:
            case events.Tokens():
                if asked and isinstance(asked[0], effects.Emit):
                    self._output(in_flight, event, now_ns)
            case events.LetIn():
                in_flight.timeline.let_in_at_ns = now_ns
            case events.Granted() if after is not before:
                self._open_leg(in_flight, event.reservation.worker, "").granted_at_ns = now_ns
            case events.PrefillFinished() if after is not before:
                self._handed_over(in_flight, event, now_ns)
            case events.Failed() | events.WorkerDied() | events.Tick():
                legs = in_flight.timeline.legs
                if legs and legs[-1].ended_at_ns is None and _is_left(before, after, event):
                    legs[-1].ended_at_ns, legs[-1].failure = now_ns, _why(before, after, event)
                    if legs[-1].first_output_at_ns is not None:
                        legs[-1].last_output_at_ns = in_flight.timeline.last_output_at_ns

    def preempted(self, in_flight: InFlightRequest, worker: WorkerRef) -> None:
        timeline = in_flight.timeline
        timeline.num_preemptions += 1
        if len(timeline.preemptions) < MAX_PREEMPTIONS:
            timeline.preemptions.append(Preemption(at_ns=self.clock.now_ns(), worker=worker))
            in_flight.is_preempted = True

    def ended(self, in_flight: InFlightRequest) -> None:
        now_ns, legs = self.clock.now_ns(), in_flight.timeline.legs
        in_flight.timeline.ended_at_ns = now_ns
        if legs and legs[-1].ended_at_ns is None:
            legs[-1].ended_at_ns = now_ns

    # ---- parts -------------------------------------------------------------------------------------------------------

    def _output(self, in_flight: InFlightRequest, event: events.Tokens, now_ns: int) -> None:
        """The first of a leg, of a worker or of a continuation, or a last one."""
        leg, member = self._open_leg(in_flight, event.worker, ""), self.membership.get(event.worker)
        is_decoder = event.worker == leg.decode
        if member is not None:  # this came with its latest report
            _note_gap(in_flight, event.worker, leg.last_counters if is_decoder else None, member, now_ns)
            if is_decoder:
                leg.first_counters = leg.first_counters or member.counters
                leg.last_counters, leg.last_costs = member.counters, member.load.costs
        if event.output.facts is not None:
            leg.facts = leg.facts or event.output.facts
        if leg.first_output_at_ns is None:
            leg.first_output_at_ns = now_ns
            if member is not None:
                leg.prompt_counters, leg.prompt_costs = member.counters, member.load.costs
        elif leg.decode_output_at_ns is None and leg.decode_started_at_ns is not None and is_decoder:
            leg.decode_output_at_ns = now_ns

    def _handed_over(self, in_flight: InFlightRequest, event: events.PrefillFinished, now_ns: int) -> None:
        legs = in_flight.timeline.legs
        if legs and legs[-1].ended_at_ns is None:
            legs[-1].handed_over_at_ns = now_ns
            legs[-1].transferred_bytes += event.transferred_bytes
            legs[-1].transfer_s += event.transfer_s

    def _open_leg(self, in_flight: InFlightRequest, decode: WorkerRef, reason: str) -> Leg:
        """The one that is under way, or one that begins where the last ended: in the room that is kept."""
        legs = in_flight.timeline.legs
        if legs and legs[-1].ended_at_ns is None:
            return legs[-1]
        now_ns = self.clock.now_ns()
        last = legs[-1] if legs else None
        leg = Leg(
            routed_at_ns=now_ns,
            decode=last.decode if last is not None else decode,
            reason=reason,
            is_split=last is not None and last.is_split,
            is_resumed=in_flight.handoff.has_emitted,
            decode_load=self._load(decode),
            granted_at_ns=now_ns,
        )
        self._begin(in_flight, leg)
        return leg

    def _begin(self, in_flight: InFlightRequest, leg: Leg) -> None:
        legs = in_flight.timeline.legs
        if len(legs) == MAX_LEGS:
            del legs[-2]  # the first and the last tell most
        legs.append(leg)
        in_flight.leg = leg

    def _load(self, worker: WorkerRef) -> WorkerLoad | None:
        member = self.membership.get(worker)
        return member.load if member is not None else None

    def _counters(self, worker: WorkerRef) -> StepCounters | None:
        member = self.membership.get(worker)
        return member.counters if member is not None else None


def told(in_flight: InFlightRequest, step: wire.StepOutputs, now_ns: int) -> None:
    """An output of the decode worker came, and nothing follows from it: all that most tokens need."""
    leg = in_flight.leg
    if leg is not None:
        _note_gap(in_flight, leg.decode, leg.last_counters, step, now_ns)
        leg.last_counters, leg.last_costs = step.counters, step.load.costs


def _note_gap(
    in_flight: InFlightRequest, worker: WorkerRef, before: StepCounters | None, step: Reported, now_ns: int
) -> None:
    timeline = in_flight.timeline
    last_ns = timeline.last_output_at_ns
    timeline.last_output_at_ns = now_ns
    timeline.num_outputs += 1
    if last_ns is not None and now_ns - last_ns > in_flight.worst_gap_ns:
        in_flight.worst_gap_ns = now_ns - last_ns
        timeline.worst_gap = Gap(
            from_ns=last_ns, to_ns=now_ns, worker=worker, before=before, after=step.counters, load=step.load
        )
    if in_flight.is_preempted:
        in_flight.is_preempted = False
        for preemption in timeline.preemptions:
            preemption.resumed_at_ns = preemption.resumed_at_ns or now_ns


def _is_left(before: HandoffState, after: HandoffState, event: events.Event) -> bool:
    """The attempt is over: what follows, if anything, is another."""
    if before.phase in LETTING_GO:
        return False
    if after.num_failures > before.num_failures or after.phase in LETTING_GO:
        return True
    return isinstance(event, events.WorkerDied | events.WorkerCut) and after.phase is not before.phase


def _why(before: HandoffState, after: HandoffState, event: events.Event) -> str:
    """Without what a worker says in words of its own: they may quote the request."""
    if isinstance(event, events.WorkerDied | events.WorkerCut) and event.has_left:
        return f"worker {event.worker.worker_id} left"
    if isinstance(event, events.Failed):
        return f"worker {event.worker.worker_id} failed over it: {event.code}"
    if after.failure is not None and after.failure is not before.failure:
        return after.failure.reason
    return ""
