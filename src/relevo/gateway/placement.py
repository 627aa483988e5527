"""What the router is shown and what it has decided: load reports of `membership`, joined with the ledger of charges.

Owns the in-flight ledger and the measured cost of a handoff. Every choice is `policy.router`'s.
"""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

from relevo.core.ids import RequestId, WorkerRef
from relevo.core.request import EngineRequest
from relevo.gateway.membership import Member, Membership
from relevo.policy import handoff as h
from relevo.policy.in_flight import InFlight
from relevo.policy.perf_model import HandoffCostModel
from relevo.policy.router import (
    Choice,
    PrefillChoice,
    WorkerView,
    choose_decode,
    choose_prefill,
    estimated_ttft_s,
)


class Placement:
    def __init__(self, membership: Membership, rng: Random) -> None:
        self._membership = membership
        self._rng = rng
        self._in_flight = InFlight()
        self._handoff = HandoffCostModel()

    def estimated_ttft_s(self, num_tokens: int) -> float:
        return estimated_ttft_s(self._views(), num_tokens)

    def choose_decode(self, request: EngineRequest, exclude: Iterable[WorkerRef]) -> Choice | None:
        """The decode worker, charged; None if nobody is ready."""
        num_tokens = len(request.prompt_token_ids)
        choice = choose_decode(self._views(), num_tokens, exclude, self._rng)
        if choice is not None:
            self._in_flight.charge_decode(request.request_id, choice.worker, num_tokens)
            if not choice.split:
                self._in_flight.charge_prefill(request.request_id, choice.worker, num_tokens)
        return choice

    def choose_prefill(
        self, request: EngineRequest, decode: WorkerRef, num_uncached_tokens: int, exclude: Iterable[WorkerRef]
    ) -> PrefillChoice:
        """Who computes the prompt, charged."""
        excluded = frozenset(exclude)
        views = [view for view in self._views() if view.ref not in excluded]
        decode_view = next((view for view in views if view.ref == decode), None)
        if decode_view is None:
            return PrefillChoice(worker=None, reason="the decode worker is gone")
        choice = choose_prefill(decode_view, views, num_uncached_tokens, self._handoff.handoff_s, self._rng)
        self._in_flight.charge_prefill(request.request_id, choice.worker or decode, num_uncached_tokens)
        return choice

    def observe(self, request_id: RequestId, event: h.Event) -> None:
        """Progress gives charges back."""
        match event:
            case h.Tokens(output=output):
                self._in_flight.prefill_done(request_id)
                self._in_flight.decode_progress(request_id, len(output.tokens))

    def handoff_took(self, waited_s: float, decode: WorkerRef) -> None:
        """Seconds from the first token of the prefill worker to the first of the decode worker, one step included."""
        member = self._membership.get(decode)
        if member is not None:
            step_s = member.load.costs.step_s(max(1, member.load.num_running), member.load.num_decode_kv_tokens)
            self._handoff.observe(waited_s, step_s)

    def end(self, request_id: RequestId) -> None:
        self._in_flight.end(request_id)

    def forget(self, worker: WorkerRef) -> None:
        self._in_flight.forget(worker)

    @property
    def is_idle(self) -> bool:
        """Everything that was charged was given back."""
        return self._in_flight.is_empty

    def _views(self) -> list[WorkerView]:
        return [self._view(member) for member in self._membership.members]

    def _view(self, member: Member) -> WorkerView:
        return WorkerView(
            ref=member.ref,
            role=member.role,
            ready=member.is_ready,
            load=member.load,
            in_flight_prefill_tokens=self._in_flight.prefill_tokens(member.ref),
            in_flight_decode_tokens=self._in_flight.decode_tokens(member.ref),
        )
