"""Where requests wait for their turn: asks `policy.admission` which may come in and which is next.

Owns the order of the calls: enter, then every request whose turn it is. Keeps no request: the dispatcher's table is
read. Decides nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from relevo.core import errors
from relevo.core.decisions import Decide, Decision, unlogged
from relevo.core.ids import RequestId
from relevo.core.outcome import RequestEnd
from relevo.core.ports import Clock
from relevo.orchestrator.in_flight import InFlightRequest
from relevo.orchestrator.placement import Placement
from relevo.orchestrator.ports import LineStatus
from relevo.policy.admission.admission import Admission, Rejected
from relevo.policy.admission.waiting_line import Ticket

log = logging.getLogger("relevo.gateway")

CLASSES = {False: "interactive", True: "batch"}


class AdmissionMetrics(Protocol):
    def admission_rejected(self, model: str, reason: str) -> None: ...

    def deadline_missed(self, model: str, when: str) -> None: ...

    def left_line(self, model: str, class_name: str, waited_s: float) -> None:
        """For a worker."""
        ...


@dataclass(slots=True, kw_only=True)
class AdmissionQueue:
    requests: Mapping[RequestId, InFlightRequest]
    admission: Admission
    placement: Placement
    clock: Clock
    metrics: AdmissionMetrics
    model_name: str
    let_in: Callable[[InFlightRequest], None]  # it is this request's turn
    turn_away: Callable[[InFlightRequest, RequestEnd], None]  # it has to end, waiting or running
    decide: Decide = unlogged
    _is_pumping: bool = False

    def enter(self, in_flight: InFlightRequest) -> None:
        """Put it in line and let in every request that may go, or turn it away."""
        placement, now_ns = self.placement, self.clock.now_ns()
        num_cached_tokens, outlook = placement.num_cached_tokens(in_flight), placement.outlook(in_flight)
        num_prompt_tokens = in_flight.handoff.num_prompt_tokens
        self.decide(
            Decision.ARRIVE,
            in_flight.request_id,
            num_prompt_tokens=num_prompt_tokens,
            num_cached_tokens=num_cached_tokens,
        )
        in_flight.timeline.prepared_at_ns = now_ns
        in_flight.timeline.num_ahead = self.admission.num_in_line(is_batch=in_flight.request.terms.is_batch)
        verdict = self.admission.enter(in_flight.request, num_cached_tokens, outlook, now_ns)
        if isinstance(verdict, Rejected):
            self._turn_away(in_flight, verdict.end)
            return
        if verdict.displaced is not None:
            self._turn_away(self.requests[verdict.displaced.request_id], verdict.displaced.end)
        in_flight.admission_due_at_ns = self.admission.due_at_ns(in_flight.request_id)
        self.decide(Decision.QUEUE, in_flight.request_id, wait_s=verdict.wait_s)
        self.pump()

    def pump(self) -> None:
        """Let in every request whose turn it is, as far as there is room. To be called whenever room may have
        appeared."""
        if self._is_pumping:  # what is looked at meanwhile is seen by the turn that is under way
            return
        self._is_pumping = True
        try:
            self._pump()
        finally:
            self._is_pumping = False

    def _pump(self) -> None:
        while self.admission.has_line:
            ticket = self.admission.next(self.clock.now_ns(), self._has_room)
            if ticket is None:
                return
            waited_s = (self.clock.now_ns() - ticket.entered_at_ns) / 1e9
            in_flight = self.requests[ticket.request_id]
            class_name = CLASSES[ticket.is_batch]
            in_flight.route_notes.append(f"line {class_name}: {waited_s * 1e3:.0f} ms")
            self.metrics.left_line(self.model_name, class_name, waited_s)
            self.decide(Decision.SEND, ticket.request_id)
            self.let_in(in_flight)

    def started(self, in_flight: InFlightRequest) -> None:
        """It has its first token."""
        self.admission.started(in_flight.request_id, self.clock.now_ns())

    def leave(self, in_flight: InFlightRequest) -> None:
        """It is over, however it ended. Idempotent."""
        in_flight.admission_due_at_ns = None
        self.admission.done(in_flight.request_id, self.clock.now_ns(), in_flight.num_output_tokens)

    def look_at(self, in_flight: InFlightRequest) -> None:
        """Its time is over: it is turned away, unless its next deadline is a later one."""
        request_id = in_flight.request_id
        overdue = self.admission.overdue(request_id, self.placement.outlook(in_flight), self.clock.now_ns())
        if overdue is None:
            in_flight.admission_due_at_ns = self.admission.due_at_ns(request_id)
            return
        if overdue.end.code == errors.DeadlineExceeded.code:
            self.metrics.deadline_missed(self.model_name, "waiting" if overdue.was_waiting else "running")
        if overdue.was_waiting:
            self._turn_away(in_flight, overdue.end)
        else:
            self.turn_away(in_flight, overdue.end)

    def statuses(self) -> tuple[LineStatus, ...]:
        now_ns = self.clock.now_ns()
        return tuple(
            LineStatus(
                name=name,
                num_waiting=self.admission.num_in_line(is_batch=is_batch),
                oldest_wait_s=self.admission.oldest_wait_s(now_ns, is_batch=is_batch),
            )
            for is_batch, name in CLASSES.items()
        )

    def _has_room(self, ticket: Ticket) -> bool:
        num_behind = self.admission.num_in_line(is_batch=False) - 1
        try:
            return self.placement.has_room(self.requests[ticket.request_id], num_behind)
        except Exception:  # let in, it keeps no other in line; what is wrong with it shows where it is placed
            log.exception("request %s: it cannot be said whether there is room for it", ticket.request_id)
            return True

    def _turn_away(self, in_flight: InFlightRequest, end: RequestEnd) -> None:
        log.debug("%s: not served, %s: %s", in_flight.request_id, end.limit, end.reason)
        self.decide(Decision.REFUSE, in_flight.request_id, limit=end.limit, reason=end.reason)
        self.metrics.admission_rejected(self.model_name, end.limit)
        self.turn_away(in_flight, end)
