"""Whose turn it is: every waiting request leaves once, tenants share by weight, priorities are strict."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from relevo.core.ids import RequestId
from relevo.policy.admission.waiting_line import QUANTUM_TOKENS, Level, Ticket, WaitingLine

_numbers = count()


def ticket(tenant: str = "a", cost: int = 100, *, is_batch: bool = False, priority: int = 0, name: str = "") -> Ticket:
    return Ticket(
        request_id=RequestId(name or f"r{next(_numbers)}"),
        tenant=tenant,
        level=(is_batch, priority),
        cost_tokens=cost,
        num_prompt_tokens=cost,
    )


def filled(*tickets: Ticket, weights: dict[str, float] | None = None) -> WaitingLine:
    line = WaitingLine(weights)
    for each in tickets:
        line.push(each)
    return line


def leave(line: WaitingLine) -> Ticket:
    """The next one leaves and costs what was expected."""
    left = line.pop()
    assert left is not None
    line.settle(left, left.cost_tokens)
    return left


def test_one_tenant_is_served_in_order_of_arrival() -> None:
    tickets = [ticket(cost=cost) for cost in (700, 1, 5000, 30)]
    line = filled(*tickets)
    assert [leave(line) for _ in tickets] == tickets
    assert line.pop() is None
    assert line.is_forgotten


def test_a_lower_number_leaves_first_and_batch_leaves_last() -> None:
    """Red when a class or priority is only a weight."""
    late, early, batch = ticket(priority=5), ticket("b", priority=-1), ticket("c", is_batch=True, priority=-9)
    line = filled(batch, late, early)
    assert [leave(line) for _ in range(3)] == [early, late, batch]


@given(costs=st.lists(st.integers(1, 3000), min_size=200, max_size=200), cost=st.integers(1, 3000))
@settings(max_examples=30, deadline=None)
def test_a_tenant_with_much_in_line_delays_the_first_of_another_by_its_share_only(costs: list[int], cost: int) -> None:
    """However much A has in line: before B's first request A gets no more than as many quanta as B needs, and one."""
    line = filled(*(ticket("a", each) for each in costs))
    for _ in range(20):
        leave(line)
    newcomer = ticket("b", cost)
    line.push(newcomer)
    before = 0
    while (left := leave(line)) is not newcomer:
        before += left.cost_tokens
    rounds = -(-cost // QUANTUM_TOKENS)
    assert before <= (rounds + 1) * QUANTUM_TOKENS + max(costs)


@given(
    costs=st.lists(st.integers(1, 2000), min_size=10, max_size=40),
    others=st.lists(st.integers(1, 2000), min_size=10, max_size=40),
    weight=st.sampled_from((0.5, 1.0, 2.0, 4.0)),
)
@settings(max_examples=60, deadline=None)
def test_who_always_waits_gets_tokens_by_weight(costs: list[int], others: list[int], weight: float) -> None:
    """The bound of deficit round robin, at every moment at which both wait: a quantum, and the largest cost of each."""
    line = filled(
        *(ticket("a", cost) for cost in costs), *(ticket("b", cost) for cost in others), weights={"a": weight}
    )
    served = {"a": 0.0, "b": 0.0}
    num_left = {"a": len(costs), "b": len(others)}
    while all(num_left.values()):
        left = leave(line)
        served[left.tenant] += left.cost_tokens
        num_left[left.tenant] -= 1
        bound = 2 * QUANTUM_TOKENS + max(costs) / weight + max(others)
        assert abs(served["a"] / weight - served["b"]) <= bound


def test_what_was_used_beyond_the_expected_is_owed_while_others_wait() -> None:
    line = filled(*(ticket("a", 100) for _ in range(50)), *(ticket("b", 100) for _ in range(50)))
    first = line.pop()
    assert first is not None
    line.settle(first, 100 + 10 * QUANTUM_TOKENS)
    tenants = {leave(line).tenant for _ in range(45)}
    assert tenants == {"a", "b"} - {first.tenant}, "ten quanta are owed, and 45 requests are fewer tokens than that"


def test_using_what_nobody_else_wants_creates_no_debt() -> None:
    line = filled(ticket("a", 100), ticket("a", 100))
    alone = line.pop()
    assert alone is not None
    line.settle(alone, 10**6)
    line.push(ticket("b", 600))
    assert leave(line).tenant == "a"


def test_nothing_is_saved_up_by_not_asking() -> None:
    line = filled(*(ticket("a", 400) for _ in range(40)), ticket("b", 400))
    for _ in range(20):
        leave(line)  # b's only one among them
    for _ in range(20):
        line.push(ticket("b", 400))
    tenants = [leave(line).tenant for _ in range(10)]
    assert 4 <= tenants.count("b") <= 6


def test_who_comes_to_a_full_line_takes_the_last_place_of_the_fullest() -> None:
    tickets = [ticket("a") for _ in range(3)] + [ticket("b")]
    line = filled(*tickets)
    assert line.victim_for("c", (False, 0)) is tickets[2]
    assert line.victim_for("b", (False, 0)) is tickets[2]
    assert line.victim_for("a", (False, 0)) is None, "it would displace itself"
    assert line.victim_for("c", (False, 1)) is None, "nobody gives way to somebody of worse priority"
    assert line.victim_for("a", (False, -1)) is tickets[2], "a better priority goes first, whoever asks"
    assert line.victim_for("c", (True, 0)) is None, "batch requests take no place of others"


def test_an_equal_share_is_not_taken_away() -> None:
    line = filled(ticket("a"), ticket("a"), ticket("b"))
    assert line.victim_for("b", (False, 0)) is None


@given(
    mine=st.lists(st.integers(1, 2000), max_size=8),
    others=st.lists(st.integers(1, 2000), max_size=30),
    cost=st.integers(1, 2000),
)
@settings(max_examples=60, deadline=None)
def test_what_is_said_to_be_ahead_is_what_leaves_before(mine: list[int], others: list[int], cost: int) -> None:
    """Up to the bound of the round robin: a quantum and the largest cost."""
    line = filled(*(ticket("a", each) for each in mine), *(ticket("b", each) for each in others))
    last = ticket("a", cost)
    ahead = line.tokens_ahead("a", last.level, cost)
    line.push(last)
    before = 0
    while (left := leave(line)) is not last:
        before += left.cost_tokens
    assert abs(before - ahead) <= 2 * QUANTUM_TOKENS + max([0, *others]) + max([cost, *mine])


def test_a_tenant_without_room_is_passed_by_others_and_keeps_its_turn() -> None:
    """Red when one request without room keeps the requests of every tenant in line."""
    first, later, other = ticket("a", 900), ticket("a", 1), ticket("b", 5000)
    line = filled(first, later, other)
    assert line.peek() is first
    assert line.pop(["a"]) is other
    assert line.peek(["a"]) is None, "no request passes one of its own tenant"
    assert line.pop() is first


def test_a_priority_of_ones_own_orders_ones_own_requests_only() -> None:
    """Red when a request that says it can wait waits for every other tenant too, and for ever."""
    low, normal, others = replace(ticket("a"), priority=5), ticket("a"), [ticket("b", 600) for _ in range(9)]
    line = filled(low, normal, *others)
    order = [leave(line) for _ in range(11)]
    assert order.index(normal) < order.index(low) < order.index(others[2])
    assert filled(low).tokens_ahead("a", low.level, 1, priority=0) == 0
    assert filled(low).victim_for("a", low.level, priority=0) is low


class LineMachine(RuleBasedStateMachine):
    """Against a plain list of who waits: nobody is lost, doubled or forgotten, and all accounts close at zero."""

    def __init__(self) -> None:
        super().__init__()
        self.line = WaitingLine({"b": 3.0})
        self.waiting: list[Ticket] = []
        self.running: list[Ticket] = []

    @rule(tenant=st.sampled_from("abc"), cost=st.integers(1, 2000), is_batch=st.booleans(), priority=st.integers(-1, 1))
    def comes(self, tenant: str, cost: int, is_batch: bool, priority: int) -> None:
        new = ticket(tenant, cost, is_batch=is_batch, priority=priority)
        self.line.push(new)
        self.waiting.append(new)

    @rule()
    def is_served(self) -> None:
        """Work conservation: somebody is served whenever somebody waits."""
        turn = self.line.peek()
        left = self.line.pop()
        assert left is turn
        assert (left is None) == (not self.waiting)
        if left is not None:
            assert left.level == min(each.level for each in self.waiting)
            same = [e for e in self.waiting if (e.level, e.tenant) == (left.level, left.tenant)]
            assert left is same[0], "a tenant's requests of one priority overtake one another"
            self.waiting.remove(left)
            self.running.append(left)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def goes_away(self, data: st.DataObject) -> None:
        gone = data.draw(st.sampled_from(self.waiting))
        assert self.line.remove(gone.request_id) is gone
        assert self.line.remove(gone.request_id) is None
        self.waiting.remove(gone)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), real=st.integers(0, 20_000))
    def ends(self, data: st.DataObject, real: int) -> None:
        done = data.draw(st.sampled_from(self.running))
        self.line.settle(done, real)
        self.running.remove(done)

    @invariant()
    def counts_agree(self) -> None:
        assert list(self.line) == self.waiting
        for is_batch in (False, True):
            expected = sum(each.cost_tokens for each in self.waiting if each.is_batch == is_batch)
            assert self.line.backlog_tokens(is_batch=is_batch) == expected
        assert self.line.is_forgotten == (not self.waiting and not self.running)


TestLineMachine = LineMachine.TestCase
TestLineMachine.settings = settings(max_examples=25, stateful_step_count=40, deadline=None)


def test_levels_are_ordered_by_class_before_priority() -> None:
    first: Level = (False, 10**9)
    assert first < (True, -(10**9))
