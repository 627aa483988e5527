"""Who may come in, whose turn it is, and for whom it is too late: the gateway's waiting line and its bounds.

A request waits from `enter` until `started` (its first token), at first in line, from `next` on at a worker; it runs
from there until `done`. Nothing behind it is unbounded:

- **places**: requests and prompt tokens that wait, requests in all. A full line gives a place to a newcomer whose
  tenant holds less than its share of it, or whose priority is better, at the cost of the last of the fullest tenant.
- **time**: a request that would get its first token too late is told so at once, and when to come back. Predicted from
  what is ahead (in its own fair turn), the rate at which the line moves, decode room at the time the prompt would be
  computed (never before the first of the streams can end that fill its tenant's share), and the workers' own queues.
  Only waiting is a reason: what would be late on idle workers is served, because coming back later would not help.
- **length**: while an overload lasts, the line is no longer than it must be (`policy.admission.overload_detector`).
- **deadlines**: who waited too long leaves without being computed; who runs past its client's timeout is given up.

The order is `policy.admission.waiting_line`'s: granted priority, then deficit round robin over the price of compute.
Batch requests come last, have bounds of their own, and count in no other request's prediction.

Owns the line, the bounds and the deadlines. Does not know workers (`policy.admission.room` reads them) or HTTP.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from math import ceil

from relevo.core.errors import DeadlineExceeded, NoWorker, Overloaded
from relevo.core.ids import RequestId
from relevo.core.request import EngineRequest
from relevo.policy.admission.deadlines import WAITED, Deadlines
from relevo.policy.admission.draw_price import output_token_price
from relevo.policy.admission.room import RoomView
from relevo.policy.admission.wait_forecast import WaitForecast
from relevo.policy.admission.waiting_line import Level, Ticket, WaitingLine
from relevo.policy.admission.words import (
    LIMITS,
    AdmissionLimits,
    Admitted,
    Displaced,
    Overdue,
    Rejected,
    TenantCount,
    refusal_of,
)

__all__ = ["LIMITS", "Admission", "AdmissionLimits", "Admitted", "Displaced", "Overdue", "Rejected"]

CACHED_TOKEN_PRICE = 0.1  # of a token to compute: what most price lists say. Arbitrary.
MAX_PASSED = 64  # arbitrary: tenants without room, until those that follow them are not asked
EXPECTED_OUTPUT_TOKENS = 128  # of a continuation, before any was seen. Arbitrary.


@dataclass(slots=True, kw_only=True)
class _Entry:
    ticket: Ticket
    arrived_at_ns: int
    leave_by_ns: int | None  # if it is in line by then it is too late
    leave_limit: str
    end_by_ns: int | None
    prompt_cost_tokens: int
    output_price: float  # of each output token
    predicted_at_ns: int  # the first token
    has_waited: bool  # it was predicted to wait
    sent_at_ns: int | None = None
    started_at_ns: int | None = None


@dataclass(slots=True)
class _Class:
    """What waits of a class: in line, or sent and without a first token."""

    num_requests: int = 0
    num_tokens: int = 0


@dataclass(slots=True)
class Admission:
    limits: AdmissionLimits
    weights: Mapping[str, float] = field(default_factory=dict)  # of tenants; 1 for all others
    _line: WaitingLine = field(init=False)
    _entries: dict[RequestId, _Entry] = field(default_factory=dict)
    _waiting: dict[bool, _Class] = field(default_factory=lambda: {False: _Class(), True: _Class()})
    _forecast: WaitForecast = field(default_factory=WaitForecast)
    _deadlines: Deadlines = field(init=False)

    def __post_init__(self) -> None:
        self._line = WaitingLine(self.weights)
        self._deadlines = Deadlines(self._forecast)

    # ---- what is seen ------------------------------------------------------------------------------------------------

    @property
    def has_line(self) -> bool:
        return len(self._line) > 0

    @property
    def num_running(self) -> int:
        """Requests that have their first token and are not done."""
        return len(self._entries) - self.num_queued_requests

    @property
    def num_queued_requests(self) -> int:
        return sum(each.num_requests for each in self._waiting.values())

    @property
    def num_queued_tokens(self) -> int:
        return sum(each.num_tokens for each in self._waiting.values())

    @property
    def is_idle(self) -> bool:
        """No request waits or runs; every place and every debt is given back."""
        return not self._entries and self._line.is_forgotten and not self.num_queued_tokens

    def num_in_line(self, *, is_batch: bool) -> int:
        return self._line.num_of(is_batch=is_batch)

    def oldest_wait_s(self, now_ns: int, *, is_batch: bool) -> float:
        """Seconds that the longest waiting request of the class has been in line; 0 if none is."""
        oldest = next((ticket for ticket in self._line if ticket.is_batch == is_batch), None)
        return (now_ns - oldest.entered_at_ns) / 1e9 if oldest is not None else 0.0

    def tenants(self) -> list[TenantCount]:
        """What each tenant has here, waiting or running."""
        found: dict[str, TenantCount] = {}
        for entry in self._entries.values():
            tenant, is_batch = entry.ticket.tenant, entry.ticket.is_batch
            count = found.get(tenant)
            if count is None:
                count = found[tenant] = TenantCount(tenant)
            if entry.sent_at_ns is not None:
                count.num_sent += 1
            else:
                count.num_waiting += 1
                count.num_waiting_batch += is_batch
        return list(found.values())

    # ---- coming in ---------------------------------------------------------------------------------------------------

    def enter(
        self, request: EngineRequest, num_cached_tokens: int, outlook: RoomView, now_ns: int
    ) -> Admitted | Rejected:
        """Put the request in line, unless a limit is reached. A request id enters once until it is done.

        `num_cached_tokens`: of its prompt, believed to be cached somewhere. A prompt larger than `max_queued_tokens`
        is admitted when nothing else waits: later would be no better.
        """
        assert request.request_id not in self._entries, "admitted twice"
        ticket, prompt_cost = self._ticket(request, num_cached_tokens, now_ns)
        wait_s = self._forecast.wait_s(self._line, ticket, outlook)
        is_first = self._line.victim_for(ticket.tenant, ticket.level, ticket.priority) is not None
        late = self._deadlines.on_arrival(
            ticket, request.terms, wait_s, outlook, self.limits, now_ns, comes_before_others=is_first
        )
        if late is not None:
            return Rejected(refusal_of(late.limit, late.reason, late.retry_after_s))
        full = self._full(ticket)
        displaced = None
        if full is not None:
            victim = self._victim(ticket, full[0])
            if victim is None:
                return Rejected(refusal_of(*full, wait_s))
            displaced = self._displace(victim, outlook)
        leave_limit, leave_by_ns = self._deadlines.leave_by(request, outlook, self.limits, now_ns)
        self._entries[ticket.request_id] = _Entry(
            ticket=ticket,
            arrived_at_ns=request.arrived_at_ns or now_ns,
            leave_by_ns=leave_by_ns,
            leave_limit=leave_limit,
            end_by_ns=_after(request.arrived_at_ns or now_ns, request.terms.timeout_s),
            prompt_cost_tokens=prompt_cost,
            output_price=output_token_price(request.sampling),
            predicted_at_ns=now_ns + round((wait_s + outlook.queue_s + outlook.own_s) * 1e9),
            has_waited=wait_s > 0.0,
        )
        self._line.push(ticket)
        self._count(ticket, 1)
        return Admitted(wait_s, displaced)

    def next(self, now_ns: int, has_room: Callable[[Ticket], bool]) -> Ticket | None:
        """Whose turn it is among those for whom there is room: it leaves the line. A tenant without room is passed by
        other tenants of its level, and keeps its turn; no request passes one of its own tenant."""
        passed: list[str] = []
        while (ticket := self._line.peek(passed)) is not None and not has_room(ticket):
            passed.append(ticket.tenant)
            if len(passed) == MAX_PASSED:
                ticket = None
                break
        if ticket is None:
            if passed:
                self._forecast.drain.waits(now_ns)
            return None
        self._line.pop(passed)
        self._forecast.drain.left(ticket.cost_tokens, now_ns, is_empty=not self.has_line)
        self._entries[ticket.request_id].sent_at_ns = now_ns
        return ticket

    def started(self, request_id: RequestId, now_ns: int) -> None:
        """It has its first token and waits no more. Unless it was sent and has none yet: no effect."""
        entry = self._entries.get(request_id)
        if entry is not None and entry.sent_at_ns is not None and entry.started_at_ns is None:
            entry.started_at_ns = now_ns
            self._count(entry.ticket, -1)
            if entry.has_waited:
                self._forecast.took(entry.ticket, entry.predicted_at_ns, entry.sent_at_ns, now_ns)

    def done(self, request_id: RequestId, now_ns: int, num_output_tokens: int = 0) -> None:
        """It is over, however it ended, after so many tokens in all. Idempotent; unknown requests: no effect."""
        entry = self._entries.pop(request_id, None)
        if entry is None:
            return
        ticket = entry.ticket
        if entry.started_at_ns is None:
            self._count(ticket, -1)
        elif num_output_tokens:
            self._forecast.output_tokens.observe(num_output_tokens / ticket.num_samples)
            self._forecast.residence_s.observe((now_ns - entry.started_at_ns) / 1e9)
        if entry.sent_at_ns is not None:
            self._line.settle(ticket, entry.prompt_cost_tokens + ceil(entry.output_price * num_output_tokens))
        else:
            self._line.remove(request_id)
            if not self.has_line:
                self._forecast.drain.emptied(now_ns)

    # ---- deadlines ---------------------------------------------------------------------------------------------------

    def due_at_ns(self, request_id: RequestId) -> int | None:
        """When to ask `overdue` next; None: never."""
        entry = self._entries.get(request_id)
        if entry is None:
            return None
        due = (entry.end_by_ns, entry.leave_by_ns if entry.sent_at_ns is None else None)
        return min((at_ns for at_ns in due if at_ns is not None), default=None)

    def overdue(self, request_id: RequestId, outlook: RoomView, now_ns: int) -> Overdue | None:
        """None: it still has time. One that waits in vain leaves the line; `done` must follow either way."""
        entry = self._entries.get(request_id)
        due_at_ns = self.due_at_ns(request_id)
        if entry is None or due_at_ns is None or now_ns < due_at_ns:
            return None
        is_over = entry.end_by_ns is not None and now_ns >= entry.end_by_ns
        limit = "client_timeout" if is_over else entry.leave_limit
        retry_after_s = self._forecast.wait_s(self._line, entry.ticket, outlook)
        was_waiting = entry.started_at_ns is None
        if entry.sent_at_ns is None:
            self._forecast.waited_in_vain(entry.ticket, entry.predicted_at_ns, now_ns)
            self._line.remove(request_id)
        code = DeadlineExceeded.code if limit.startswith("client_") else Overloaded.code
        if code == Overloaded.code and not outlook.is_anyone_ready:
            code = NoWorker.code
        return Overdue(refusal_of(limit, WAITED[limit], retry_after_s, code), was_waiting)

    # ---- places ------------------------------------------------------------------------------------------------------

    def _full(self, ticket: Ticket) -> tuple[str, str] | None:
        limits, waiting = self.limits, self._waiting[ticket.is_batch]
        if limits.max_running is not None and len(self._entries) >= limits.max_running:
            return "max_running", f"{limits.max_running} requests are being served, which is the limit."
        name = "max_queued_batch_requests" if ticket.is_batch else "max_queued_requests"
        most = limits.max_queued_batch_requests if ticket.is_batch else limits.max_queued_requests
        if most is not None and waiting.num_requests >= most:
            return name, f"{most} requests wait already, which is the limit."
        most = limits.max_queued_tokens
        if most is not None and waiting.num_requests and waiting.num_tokens + ticket.num_prompt_tokens > most:
            return (
                "max_queued_tokens",
                f"With this prompt more than {most} prompt tokens would wait, which is the limit.",
            )
        return None

    def _victim(self, ticket: Ticket, limit: str) -> Ticket | None:
        """Who makes place for it, if that is fair and enough."""
        if limit == "max_running":
            return None
        victim = self._line.victim_for(ticket.tenant, ticket.level, ticket.priority)
        if victim is None:
            return None
        most, num_tokens = self.limits.max_queued_tokens, self._waiting[ticket.is_batch].num_tokens
        is_enough = most is None or num_tokens - victim.num_prompt_tokens + ticket.num_prompt_tokens <= most
        return victim if is_enough else None

    def _displace(self, victim: Ticket, outlook: RoomView) -> Displaced:
        self._line.remove(victim.request_id)
        self._count(victim, -1)
        del self._entries[victim.request_id]
        reason = "The waiting line is full, and the place went to a request of a tenant that has fewer or comes first."
        end = refusal_of("displaced", reason, self._forecast.wait_s(self._line, victim, outlook))
        return Displaced(victim.request_id, end)

    def _count(self, ticket: Ticket, num: int) -> None:
        waiting = self._waiting[ticket.is_batch]
        waiting.num_requests += num
        waiting.num_tokens += num * ticket.num_prompt_tokens

    def _ticket(self, request: EngineRequest, num_cached_tokens: int, now_ns: int) -> tuple[Ticket, int]:
        """With the price of its compute: uncached and cached prompt tokens, and the outputs it is expected to have."""
        num_prompt, sampling, terms = len(request.prompt_token_ids), request.sampling, request.terms
        prompt_cost = max(1, ceil(num_prompt - num_cached_tokens * (1.0 - CACHED_TOKEN_PRICE)))
        expected = self._forecast.output_tokens.value or EXPECTED_OUTPUT_TOKENS
        level: Level = (terms.is_batch, 0 if terms.is_batch else min(0, request.priority))
        ticket = Ticket(
            request_id=request.request_id,
            tenant=terms.tenant,
            level=level,
            cost_tokens=prompt_cost
            + ceil(output_token_price(sampling) * sampling.n * round(min(sampling.max_tokens, expected))),
            num_prompt_tokens=num_prompt,
            priority=request.priority,
            num_samples=sampling.n,
            entered_at_ns=now_ns,
        )
        return ticket, prompt_cost

    def __iter__(self) -> Iterator[RequestId]:
        """All requests that wait or run."""
        return iter(self._entries)


def _after(now_ns: int, seconds: float | None) -> int | None:
    return None if seconds is None else now_ns + round(seconds * 1e9)
