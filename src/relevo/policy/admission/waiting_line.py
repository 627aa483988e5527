"""In which order waiting requests leave: strict levels, and deficit round robin over tokens inside a level.

Owns the line: who waits, whose turn it is, what each tenant may still take and what it owes. A request's cost is a
price in tokens that the caller sets when it enters and corrects when it is over; a tenant gets, per round, a quantum of
tokens times its weight. A tenant that alone wants something gets all of it, and using what no other wants creates no
debt.

Does not know clocks, workers or limits; those are `policy.admission`'s. Source: Shreedhar and Varghese, Efficient Fair
Queueing Using Deficit Round Robin (SIGCOMM 1995); corrected costs as in Sheng et al., Fairness in Serving Large
Language Models (OSDI 2024)."""

from __future__ import annotations

from bisect import insort
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from relevo.core.ids import RequestId

QUANTUM_TOKENS = 512  # arbitrary: about one prompt; smaller ones only cost rounds, larger ones make bursts

Level = tuple[bool, int]  # batch or not, granted priority (0 or below): lower leaves first


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticket:
    """A request in line."""

    request_id: RequestId
    tenant: str
    level: Level
    cost_tokens: int  # at least 1; see policy.admission
    num_prompt_tokens: int
    priority: int = 0  # among those of its tenant in its level: lower leaves first
    num_samples: int = 1
    entered_at_ns: int = 0

    @property
    def is_batch(self) -> bool:
        return self.level[0]


@dataclass(slots=True)
class _Flow:
    """One tenant in one level."""

    weight: float
    tickets: list[Ticket] = field(default_factory=list)  # in order of priority, then arrival
    backlog_tokens: int = 0
    deficit_tokens: float = 0.0  # may be spent; negative: owed
    num_unsettled: int = 0  # tickets that left and whose cost is not final

    @property
    def head(self) -> Ticket:
        return self.tickets[0]

    @property
    def quantum_tokens(self) -> float:
        return QUANTUM_TOKENS * self.weight

    def rounds_missing(self) -> int:
        """So many more quanta until the head may leave."""
        missing = self.head.cost_tokens - self.deficit_tokens
        return max(0, -int(-missing // self.quantum_tokens))


@dataclass(slots=True)
class _LevelLine:
    flows: dict[str, _Flow] = field(default_factory=dict)  # waiting, owing or with costs that are not final
    turn: list[str] = field(default_factory=list)  # tenants that wait; the first one's visit is under way

    def choose(self, passed: Collection[str]) -> str | None:
        """Whose head leaves next, those `passed` left out; grants the quanta on the way there and makes it the first in
        turn."""
        visits = {
            index: self._visit(index, self.flows[tenant])
            for index, tenant in enumerate(self.turn)
            if tenant not in passed
        }
        if not visits:
            return None
        first = min(visits, key=lambda index: visits[index])
        chosen = visits[first]
        for index in visits:
            position, flow = index or len(self.turn), self.flows[self.turn[index]]
            num_grants = chosen[0] if position <= chosen[1] else chosen[0] - 1
            flow.deficit_tokens += max(0, num_grants) * flow.quantum_tokens
        self.turn = self.turn[first:] + self.turn[:first]
        return self.turn[0]

    def _visit(self, index: int, flow: _Flow) -> tuple[int, int]:
        """(round, place in it) of the visit at which the flow's head leaves. Each visit but the present one grants."""
        rounds = flow.rounds_missing()
        if index == 0:
            return (rounds, len(self.turn)) if rounds else (0, 0)
        return max(1, rounds), index


class WaitingLine:
    """`weights`: of tenants; 1 for all others."""

    def __init__(self, weights: Mapping[str, float] | None = None) -> None:
        self._weights = dict(weights or {})
        self._levels: dict[Level, _LevelLine] = {}
        self._tickets: dict[RequestId, Ticket] = {}  # in order of arrival
        self._num_batch = 0  # of them

    def __len__(self) -> int:
        return len(self._tickets)

    def __contains__(self, request_id: RequestId) -> bool:
        return request_id in self._tickets

    def __iter__(self) -> Iterator[Ticket]:
        """In order of arrival."""
        return iter(self._tickets.values())

    def num_of(self, *, is_batch: bool) -> int:
        """Requests that wait in a class."""
        return self._num_batch if is_batch else len(self._tickets) - self._num_batch

    @property
    def is_forgotten(self) -> bool:
        """No request waits, nothing is owed or unsettled."""
        return not self._tickets and not self._levels

    def backlog_tokens(self, *, is_batch: bool) -> int:
        """Cost of what waits in a class."""
        flows = (flow for level, line in self._levels.items() if level[0] == is_batch for flow in line.flows.values())
        return sum(flow.backlog_tokens for flow in flows)

    def push(self, ticket: Ticket) -> None:
        assert ticket.cost_tokens >= 1
        assert ticket.request_id not in self._tickets
        flow = self._flow(ticket)
        if not flow.tickets:
            self._levels[ticket.level].turn.append(ticket.tenant)
        insort(flow.tickets, ticket, key=lambda each: each.priority)
        flow.backlog_tokens += ticket.cost_tokens
        self._tickets[ticket.request_id] = ticket
        self._num_batch += ticket.is_batch

    def peek(self, passed: Collection[str] = ()) -> Ticket | None:
        """Whose turn it is, if the tenants `passed` are left out; of the best level that waits. Stays so until the line
        changes. Quanta are granted as if it left now."""
        level = self._first_level()
        if level is None:
            return None
        line = self._levels[level]
        tenant = line.choose(passed)
        return None if tenant is None else line.flows[tenant].head

    def pop(self, passed: Collection[str] = ()) -> Ticket | None:
        """The one of `peek` leaves and is charged; `settle` must follow once its real cost is known."""
        ticket = self.peek(passed)
        if ticket is not None:
            flow = self._levels[ticket.level].flows[ticket.tenant]
            flow.deficit_tokens -= ticket.cost_tokens
            flow.num_unsettled += 1
            self._take_out(ticket)
        return ticket

    def remove(self, request_id: RequestId) -> Ticket | None:
        """It leaves the line without a turn, at no cost. None if it does not wait."""
        ticket = self._tickets.get(request_id)
        if ticket is not None:
            self._take_out(ticket)
        return ticket

    def settle(self, ticket: Ticket, real_cost_tokens: int) -> None:
        """The cost of a ticket that left by `pop` is final. What it took beyond is owed if others had to wait."""
        line = self._levels[ticket.level]
        flow = line.flows[ticket.tenant]
        flow.num_unsettled -= 1
        is_contended = any(tenant != ticket.tenant for tenant in line.turn)
        if is_contended:
            flow.deficit_tokens -= real_cost_tokens - ticket.cost_tokens
        if not flow.tickets:
            flow.deficit_tokens = min(0.0, flow.deficit_tokens)  # who wants nothing saves nothing
        self._tidy(ticket.level, ticket.tenant)

    def tokens_ahead(self, tenant: str, level: Level, cost_tokens: int, priority: int = 0) -> float:
        """Cost of what will have left before a ticket that enters now, if no other enters.

        Everything of better levels, of its own tenant what is not of worse priority, and of each other tenant what its
        weight allows meanwhile.
        """
        ahead = float(sum(f.backlog_tokens for lv, ln in self._levels.items() if lv < level for f in ln.flows.values()))
        line = self._levels.get(level)
        if line is None:
            return ahead
        mine = line.flows.get(tenant)
        own = 0 if mine is None else sum(each.cost_tokens for each in mine.tickets if each.priority <= priority)
        share = (own + cost_tokens) / self._weight(tenant)
        for other, flow in line.flows.items():
            if other != tenant:
                ahead += min(float(flow.backlog_tokens), share * flow.weight)
        return ahead + own

    def victim_for(self, tenant: str, level: Level, priority: int = 0) -> Ticket | None:
        """Who gives up its place to a newcomer when the line is full; None: no request is worse off than the newcomer.

        The last of the worst level of the class, of the tenant that holds most places for its weight there.
        """
        worst = max((lv for lv, line in self._levels.items() if lv[0] == level[0] and line.turn), default=None)
        if worst is None or worst < level:
            return None
        line = self._levels[worst]
        fullest = max(line.turn, key=lambda name: len(line.flows[name].tickets) / line.flows[name].weight)
        flow = line.flows[fullest]
        last = flow.tickets[-1]
        if worst == level and fullest == tenant:
            return last if last.priority > priority else None
        if worst == level:
            mine = line.flows.get(tenant)
            num_mine = 1 + (len(mine.tickets) if mine is not None else 0)
            if num_mine / self._weight(tenant) >= len(flow.tickets) / flow.weight:
                return None
        return last

    # ---- parts -------------------------------------------------------------------------------------------------------

    def _weight(self, tenant: str) -> float:
        return self._weights.get(tenant, 1.0)

    def _first_level(self) -> Level | None:
        return min((level for level, line in self._levels.items() if line.turn), default=None)

    def _flow(self, ticket: Ticket) -> _Flow:
        line = self._levels.setdefault(ticket.level, _LevelLine())
        return line.flows.setdefault(ticket.tenant, _Flow(self._weight(ticket.tenant)))

    def _take_out(self, ticket: Ticket) -> None:
        del self._tickets[ticket.request_id]
        self._num_batch -= ticket.is_batch
        line = self._levels[ticket.level]
        flow = line.flows[ticket.tenant]
        del flow.tickets[next(index for index, each in enumerate(flow.tickets) if each is ticket)]
        flow.backlog_tokens -= ticket.cost_tokens
        if not flow.tickets:
            line.turn.remove(ticket.tenant)
            flow.deficit_tokens = min(0.0, flow.deficit_tokens)
        self._tidy(ticket.level, ticket.tenant)

    def _tidy(self, level: Level, tenant: str) -> None:
        """A flow is forgotten, debts and all, when it has nothing waiting and nothing unsettled."""
        line = self._levels[level]
        flow = line.flows[tenant]
        if not flow.tickets and not flow.num_unsettled:
            del line.flows[tenant]
        if not line.flows:
            del self._levels[level]
