"""What handoffs cost: for the router, from the prefill worker's first token to the decode worker's; for people, from
that first token to the baton on its way, all KV sealed, and how many handoffs came to which end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from relevo.core.errors import HandoffFailed
from relevo.core.handoff import KVPath
from relevo.core.ids import WorkerRef
from relevo.core.outcome import Outcome
from relevo.core.ports import Clock
from relevo.orchestrator.in_flight import InFlightRequest
from relevo.orchestrator.insight import Insight
from relevo.orchestrator.placement import Placement
from relevo.policy.handoff import events


class HandoffMetrics(Protocol):
    def handoff_finished(
        self, model: str, outcome: str, handoff_s: float, transferred_bytes: int, transfer_s: float
    ) -> None: ...


@dataclass(frozen=True, slots=True)
class HandoffMeter:
    metrics: HandoffMetrics
    placement: Placement
    clock: Clock
    model_name: str
    insight: Insight

    def routed(self, in_flight: InFlightRequest, *, is_split: bool) -> None:
        times = in_flight.handoff_times
        times.is_uncounted = times.is_unmeasured = is_split
        times.first_token_at_ns = None

    def prefill_chosen(self, in_flight: InFlightRequest, worker: WorkerRef | None, path: KVPath | None) -> None:
        """`path`: to the decode worker; None: that computes the prompt, too."""
        if path is None:
            self._computed_locally(in_flight)
        else:
            in_flight.handoff_times.link, in_flight.handoff_times.prefill = path.link, worker

    def _computed_locally(self, in_flight: InFlightRequest) -> None:
        self.metrics.handoff_finished(self.model_name, "local", 0.0, 0, 0.0)
        in_flight.handoff_times.is_uncounted = in_flight.handoff_times.is_unmeasured = False

    def heard(self, in_flight: InFlightRequest, event: events.Event) -> None:
        times, decode = in_flight.handoff_times, in_flight.handoff.decode
        if isinstance(event, events.Failed) and event.code == HandoffFailed.code and event.worker == times.prefill:
            if decode is not None and not in_flight.handoff.has_ended:  # otherwise its room was given back
                self.placement.handoff_failed(event.worker, decode.worker, self.clock.now_ns())
            return
        if not times.is_unmeasured or not isinstance(event, events.Tokens) or decode is None:
            return
        now_ns = self.clock.now_ns()
        if event.worker != decode.worker:
            times.first_token_at_ns = times.first_token_at_ns or now_ns
        elif times.first_token_at_ns is not None:
            waited_s = (now_ns - times.first_token_at_ns) / 1e9
            self.placement.handoff_took(waited_s, event.worker, times.link, times.prefill)
            times.is_unmeasured = False
        else:  # it computed the prompt after all
            times.is_unmeasured = False

    def baton_sent(self, in_flight: InFlightRequest, *, with_ticket: bool = False) -> None:
        """`with_ticket`: the KV is fetched only now, and the first token comes after it."""
        times, handoff, now_ns = in_flight.handoff_times, in_flight.handoff, self.clock.now_ns()
        if with_ticket:
            times.first_token_at_ns = now_ns
        handoff_s = (now_ns - (times.first_token_at_ns or now_ns)) / 1e9
        self.metrics.handoff_finished(
            self.model_name, "completed", handoff_s, handoff.transferred_bytes, handoff.transfer_s
        )
        if times.prefill is not None and handoff.decode is not None:
            self.insight.handed_over(
                times.prefill, handoff.decode.worker, handoff.num_prompt_tokens, handoff.transferred_bytes
            )
        times.is_uncounted = False

    def ended(self, in_flight: InFlightRequest, outcome: Outcome) -> None:
        if in_flight.handoff_times.is_uncounted and outcome is not Outcome.FINISHED:
            self.metrics.handoff_finished(self.model_name, str(outcome), 0.0, 0, 0.0)
        in_flight.handoff_times.is_uncounted = False
