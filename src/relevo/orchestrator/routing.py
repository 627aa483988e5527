"""Where a request goes: asks `orchestrator.placement` when its handoff asks, and keeps with the request why.

Owns what happens while no worker is ready: the request is parked until one joins, for as long as it may wait for room.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

from relevo.core.decisions import Decide, Decision
from relevo.core.errors import NoWorker
from relevo.core.ids import WorkerRef
from relevo.core.outcome import RequestEnd
from relevo.core.ports import Clock
from relevo.orchestrator.handoff_meter import HandoffMeter
from relevo.orchestrator.in_flight import InFlightRequest
from relevo.orchestrator.insight import Insight
from relevo.orchestrator.marks import Marks
from relevo.orchestrator.placement import Placement
from relevo.policy.handoff import effects, events

log = logging.getLogger("relevo.gateway")

NO_ROUTE = events.NoRoute(
    RequestEnd.failed(NoWorker.code, "no worker became ready in time; see /ready for the reason", retry_after_s=5.0)
)
MAX_PARKED_S = 60.0  # without a limit of its own for waiting; arbitrary


@dataclass(frozen=True, slots=True)
class Routing:
    placement: Placement
    meter: HandoffMeter
    marks: Marks
    clock: Clock
    decide: Decide
    insight: Insight

    def route(self, in_flight: InFlightRequest, route: effects.Route) -> events.Routed | events.NoRoute | None:
        """None: it is parked. The same effect is to be carried out again when a worker is ready, and NO_ROUTE told when
        `parked_until_ns` is over."""
        choice = self.placement.choose_decode(in_flight, route.exclude, self.clock.now_ns())
        if choice is None:
            if not self.placement.may_wait():
                return NO_ROUTE
            queue_s = in_flight.handoff.limits.queue_s
            wait_s = queue_s if queue_s is not None else MAX_PARKED_S
            in_flight.park(replace(route, exclude=()), self.clock.now_ns() + round(wait_s * 1e9))
            self.decide(Decision.WAIT, in_flight.request_id)
            return None
        is_split = choice.split and not route.resume
        self._note(in_flight, "decode", choice.worker, choice.reason)
        self.decide(
            Decision.ROUTE,
            in_flight.request_id,
            worker=choice.worker.worker_id,
            epoch=choice.worker.epoch,
            split=is_split,
            num_uncached_tokens=choice.num_uncached_tokens,
            reason=choice.reason,
        )
        self.meter.routed(in_flight, is_split=is_split)
        self.insight.routed(in_flight.request, choice.worker, choice.num_uncached_tokens, self.clock.now_ns())
        if not is_split:
            self.insight.asked(choice.worker, choice.num_uncached_tokens)
        self.marks.routed(in_flight, choice, is_split=is_split)
        return events.Routed(choice.worker, is_split)

    def choose_prefill(self, in_flight: InFlightRequest, effect: effects.ChoosePrefill) -> events.PrefillChosen:
        decode = effect.reservation.worker
        choice = self.placement.choose_prefill(
            in_flight, decode, effect.num_uncached_tokens, effect.exclude, self.clock.now_ns()
        )
        worker = choice.worker or decode
        self._note(in_flight, "prompt", worker, choice.reason)
        self.decide(
            Decision.PREFILL,
            in_flight.request_id,
            worker=worker.worker_id,
            num_uncached_tokens=choice.num_uncached_tokens,
            reason=choice.reason,
        )
        self.meter.prefill_chosen(in_flight, choice.worker, choice.path)
        self.insight.asked(worker, choice.num_uncached_tokens)
        self.marks.prefill_chosen(in_flight, decode, effect.num_uncached_tokens, choice)
        return events.PrefillChosen(choice.worker)

    def _note(self, in_flight: InFlightRequest, what: str, worker: WorkerRef, reason: str) -> None:
        log.debug("%s: %s on %s: %s", in_flight.request_id, what, worker.worker_id, reason)
        in_flight.route_notes.append(f"{what} {worker.worker_id}: {reason}")
