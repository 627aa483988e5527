"""The door of the gateway: asks `policy.admission` who may come in and whose turn it is, and tells the dispatcher.

Owns the timers of waiting and running requests, and the order of the calls: enter, then everybody whose turn it is.
Decides nothing. Runs on the event loop's thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from relevo.core import errors
from relevo.core.ids import RequestId
from relevo.core.ports import Clock
from relevo.core.request import EngineRequest
from relevo.orchestrator.errors_by_code import error_for
from relevo.orchestrator.placement import Placement
from relevo.orchestrator.ports import LineStatus
from relevo.orchestrator.route_notes import RouteNotes
from relevo.policy.admission.admission import Admission, Refusal, Rejected
from relevo.policy.admission.waiting_line import Ticket

log = logging.getLogger("relevo.gateway")

CLASSES = {False: "interactive", True: "batch"}


class AdmissionMetrics(Protocol):
    def admission_rejected(self, model: str, reason: str) -> None: ...

    def deadline_missed(self, model: str, when: str) -> None: ...


@dataclass(slots=True, kw_only=True)
class AdmissionQueue:
    admission: Admission
    placement: Placement
    clock: Clock
    metrics: AdmissionMetrics
    notes: RouteNotes
    model_name: str
    let_in: Callable[[RequestId], None]  # it is this request's turn
    turn_away: Callable[[Refusal], None]  # it has to end, waiting or running
    _requests: dict[RequestId, EngineRequest] = field(default_factory=dict)
    _timers: dict[RequestId, asyncio.TimerHandle] = field(default_factory=dict)

    def enter(self, request: EngineRequest) -> None:
        """Put it in line, and let in whoever may. Raises Overloaded; then nothing of it is left."""
        request_id, placement = request.request_id, self.placement
        num_cached_tokens, outlook = placement.num_cached_tokens(request), placement.outlook(request)
        verdict = self.admission.enter(request, num_cached_tokens, outlook, self.clock.now_ns())
        if isinstance(verdict, Rejected):
            placement.end(request_id)
            raise self._refused(verdict.refusal)
        self._requests[request_id] = request
        if verdict.displaced is not None:
            self._count(verdict.displaced)
            self.turn_away(verdict.displaced)
        self._arm(request_id)
        self.pump()

    def pump(self) -> None:
        """Let in everybody whose turn it is, as far as there is room. To be called whenever room may have appeared."""
        while self.admission.has_line:
            ticket = self.admission.next(self.clock.now_ns(), self._has_room)
            if ticket is None:
                return
            waited_s = (self.clock.now_ns() - ticket.entered_at_ns) / 1e9
            self.notes.add(ticket.request_id, f"line {CLASSES[ticket.is_batch]}: {waited_s * 1e3:.0f} ms")
            self.let_in(ticket.request_id)

    def started(self, request_id: RequestId) -> None:
        """It has its first token."""
        self.admission.started(request_id, self.clock.now_ns())

    def leave(self, request_id: RequestId, num_output_tokens: int = 0) -> None:
        """It is over, however it ended. Idempotent."""
        self.admission.done(request_id, self.clock.now_ns(), num_output_tokens)
        self._requests.pop(request_id, None)
        timer = self._timers.pop(request_id, None)
        if timer is not None:
            timer.cancel()

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
        try:
            return self.placement.has_room(self._requests[ticket.request_id])
        except Exception:  # let in, it keeps no other in line; what is wrong with it shows where it is placed
            log.exception("request %s: it cannot be said whether there is room for it", ticket.request_id)
            return True

    def _arm(self, request_id: RequestId) -> None:
        due_at_ns = self.admission.due_at_ns(request_id)
        if due_at_ns is not None:
            delay_s = max(0.0, (due_at_ns - self.clock.now_ns()) / 1e9)
            self._timers[request_id] = asyncio.get_running_loop().call_later(delay_s, self._look_at, request_id)

    def _look_at(self, request_id: RequestId) -> None:
        """Its timer has fired: too late for it, or the next deadline is another one."""
        request = self._requests.get(request_id)
        if request is None:
            return
        overdue = self.admission.overdue(request_id, self.placement.outlook(request), self.clock.now_ns())
        if overdue is None:
            self._arm(request_id)
            return
        if overdue.refusal.code == errors.DeadlineExceeded.code:
            self.metrics.deadline_missed(self.model_name, "waiting" if overdue.was_waiting else "running")
        if overdue.was_waiting:
            self._count(overdue.refusal)
        self.turn_away(overdue.refusal)
        self.pump()

    def _refused(self, refusal: Refusal) -> errors.RelevoError:
        self._count(refusal)
        return error_for(refusal.code, refusal.reason, refusal.retry_after_s, refusal.limit)

    def _count(self, refusal: Refusal) -> None:
        log.debug("%s: not served, %s: %s", refusal.request_id, refusal.limit, refusal.reason)
        self.metrics.admission_rejected(self.model_name, refusal.limit)
