"""Which requests would get their first token too late, and how long those in line may go on waiting.

Owns the comparison of predictions with bounds: the server's and the client's own. Only waiting is a reason to refuse.
Does not know the line's order; what is learned is `policy.admission.wait_forecast`'s and
`policy.admission.overload_detector`'s.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from relevo.core.request import EngineRequest, ServiceTerms
from relevo.policy.admission.overload_detector import OverloadDetector
from relevo.policy.admission.room import RoomView
from relevo.policy.admission.wait_forecast import WaitForecast
from relevo.policy.admission.waiting_line import Ticket
from relevo.policy.admission.words import AdmissionLimits

WAITED = {
    "max_ttft": "The request waited as long as a first token may take here.",
    "client_ttft": "The first token cannot come within the time that the request asks for.",
    "client_timeout": "The time that the request allows is over.",
    "line_timeout": "No worker had room for the request in time.",
}


@dataclass(frozen=True, slots=True)
class TooLate:
    limit: str
    reason: str
    retry_after_s: float


@dataclass(slots=True)
class Deadlines:
    forecast: WaitForecast
    standing: OverloadDetector = field(default_factory=OverloadDetector)

    def on_arrival(
        self,
        ticket: Ticket,
        terms: ServiceTerms,
        wait_s: float,
        outlook: RoomView,
        limits: AdmissionLimits,
        now_ns: int,
        *,
        comes_before_others: bool,
    ) -> TooLate | None:
        """Why a request that enters now would come too late, `wait_s` in line predicted. Each one that comes is to be
        shown once. `comes_before_others`: some wait who have more than their share beside it, or a worse priority."""
        late = self._late(terms, wait_s, outlook, limits)
        if terms.is_batch or limits.max_ttft_s is None:
            return late
        waits_s = wait_s + outlook.queue_s
        self.standing.comes(ticket.cost_tokens, now_ns, is_idle=waits_s <= 0.0)
        if late is not None and late.limit == "max_ttft":
            self.standing.overflows(limits.max_ttft_s, now_ns)
        if late is not None or comes_before_others:
            return late
        return self._crowded(wait_s, outlook.queue_s, limits.max_ttft_s, now_ns)

    def leave_by(
        self, request: EngineRequest, outlook: RoomView, limits: AdmissionLimits, now_ns: int
    ) -> tuple[str, int | None]:
        """(limit, when): from then on it is of no use to wait, because the prompt takes time, too."""
        after_s = max(outlook.own_s, self.forecast.worker_s.value or 0.0)
        arrived_at_ns = request.arrived_at_ns or now_ns
        latest = [
            (arrived_at_ns + round((bound_s - after_s if after_s < bound_s else bound_s) * 1e9), limit)
            for limit, bound_s in _bounds(request.terms, limits)
        ]
        in_line_s = limits.max_batch_line_s if request.terms.is_batch else limits.max_line_s
        if in_line_s is not None:
            latest.append((now_ns + round(in_line_s * 1e9), "line_timeout"))
        if not latest:
            return "line_timeout", None
        leave_by_ns, limit = min(latest)
        return limit, leave_by_ns

    def _late(self, terms: ServiceTerms, wait_s: float, outlook: RoomView, limits: AdmissionLimits) -> TooLate | None:
        is_slow = terms.tpot_s is not None and outlook.num_running > 0 and outlook.tpot_s > terms.tpot_s
        if is_slow:
            every_ms = outlook.tpot_s * 1e3
            reason = f"Tokens would come every {every_ms:.0f} ms at present, later than the request asks for."
            return TooLate("client_tpot", reason, self.forecast.residence_s.value or 0.0)
        waits_s = wait_s + outlook.queue_s
        if waits_s <= 0.0:
            return None
        for limit, bound_s in _bounds(terms, limits):
            latest_s = waits_s + outlook.own_s + self.forecast.allowance.within(bound_s)
            if latest_s > bound_s:
                reason = (
                    f"The first token may take {latest_s:.1f} s at present, longer than {bound_s:g} s; come back later."
                )
                return TooLate(limit, reason, waits_s)
        return None

    def _crowded(self, wait_s: float, queue_s: float, max_ttft_s: float, now_ns: int) -> TooLate | None:
        longest_s = self.standing.longest_s(queue_s, self.forecast.drain.tokens_per_s(), now_ns)
        if longest_s is None or wait_s <= longest_s:
            return None
        reason = (
            f"More is asked for than can be served, and {wait_s + queue_s:.1f} s of it wait already; come back later."
        )
        return TooLate("standing_line", reason, max_ttft_s)


def _bounds(terms: ServiceTerms, limits: AdmissionLimits) -> list[tuple[str, float]]:
    """(limit, seconds to the first token) that hold for the request."""
    bounds = [("client_ttft", terms.ttft_s), ("client_timeout", terms.timeout_s)]
    if not terms.is_batch:
        bounds.append(("max_ttft", limits.max_ttft_s))
    return [(limit, bound_s) for limit, bound_s in bounds if bound_s is not None]
