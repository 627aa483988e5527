"""Limits of one API key, in virtual time. Red when a charge is not given back, paid twice, or time is rounded."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from relevo.policy.admission.key_limits import (
    Charge,
    KeyAccount,
    KeyLimits,
    Period,
    Refused,
    TokenBucket,
    period_end_s,
    period_start_s,
)

MINUTE_NS = 60_000_000_000
NOON_S = 1_796_040_000.0  # 2026-11-30 12:00 UTC
FREE = Decimal(0)


def account(*, now_ns: int = 0, now_s: float = NOON_S, **limits: object) -> KeyAccount:
    return KeyAccount(KeyLimits(**limits), now_ns, now_s)  # type: ignore[arg-type]


def charge(one: KeyAccount, num_tokens: int, cost: str = "0", now_ns: int = 0, now_s: float = NOON_S) -> Charge:
    charged = one.try_charge(num_tokens, Decimal(cost), now_ns, now_s)
    assert isinstance(charged, Charge), charged
    return charged


def refusal(one: KeyAccount, num_tokens: int, cost: str = "0", now_ns: int = 0, now_s: float = NOON_S) -> Refused:
    refused = one.try_charge(num_tokens, Decimal(cost), now_ns, now_s)
    assert isinstance(refused, Refused)
    return refused


def test_a_key_without_limits_is_never_refused() -> None:
    one = account()
    for _ in range(3):
        charge(one, 10**9, "1000000")
    assert one.rate(0) is None


def test_tokens_come_back_with_time_to_the_nanosecond() -> None:
    one = account(tokens_per_minute=600)
    charge(one, 600)
    refused = refusal(one, 10)
    assert refused.limit == "tokens_per_minute" and refused.retry_after_s == 1.0
    assert isinstance(one.try_charge(10, FREE, 999_999_999, NOON_S), Refused)
    charge(one, 10, now_ns=1_000_000_000)


def test_output_is_charged_at_the_end_and_cached_tokens_are_given_back() -> None:
    one = account(tokens_per_minute=100)
    first = charge(one, 80)
    one.settle(first, 30, FREE, 0, NOON_S)  # 60 of 80 were cached, 10 came out
    charge(one, 70)
    refusal(one, 1)


def test_a_prompt_of_more_than_a_minutes_tokens_waits_for_a_full_bucket_and_pays_it_back() -> None:
    one = account(tokens_per_minute=100)
    charge(one, 250)
    assert refusal(one, 1).retry_after_s == (151 / 100) * 60
    charge(one, 1, now_ns=151 * MINUTE_NS // 100)


def test_refusals_do_not_speak_of_rates_or_too_many_requests() -> None:
    """Agents match those words and give up where they should wait."""
    one = account(tokens_per_minute=1)
    charge(one, 1)
    reason = refusal(one, 1).reason.lower()
    assert "rate limit" not in reason and "too many" not in reason


def test_a_budget_counts_what_runs() -> None:
    one = account(budget=Decimal("1.00"))
    first = charge(one, 1, "0.60")
    assert refusal(one, 1, "0.60").limit == "budget"
    one.settle(first, 1, Decimal("0.10"), 0, NOON_S)  # it was cached
    second = charge(one, 1, "0.60")
    one.settle(second, 1, Decimal("0.95"), 0, NOON_S)  # its output cost more than was left
    refused = refusal(one, 1, "0")
    assert refused.retry_after_s is None and "1" in refused.reason


def test_a_spent_budget_refuses_what_costs_nothing_too() -> None:
    """The prompt may be free; its output is not, and nothing is left to pay it with."""
    one = account(budget=Decimal(1))
    one.settle(charge(one, 1, "0"), 1, Decimal(1), 0, NOON_S)
    assert refusal(one, 1, "0").limit == "budget"


def test_a_daily_budget_begins_anew_at_midnight_and_says_when() -> None:
    one = account(budget=Decimal(1), budget_period=Period.DAY)
    running = charge(one, 1, "0.5")
    one.settle(charge(one, 1, "0.5"), 1, Decimal("0.5"), 0, NOON_S)
    assert refusal(one, 1, "0.1").retry_after_s == 12 * 3600
    tomorrow_s = NOON_S + 12 * 3600
    charge(one, 1, "0.5", now_s=tomorrow_s)  # what still runs is counted, what was spent is not
    assert isinstance(one.try_charge(1, Decimal("0.5"), 0, tomorrow_s), Refused)
    one.settle(running, 1, FREE, 0, tomorrow_s)
    charge(one, 1, "0.5", now_s=tomorrow_s)


def test_the_ledger_corrects_what_was_spent() -> None:
    one = account(budget=Decimal(1))
    one.correct(Decimal("0.9"), NOON_S)
    refusal(one, 1, "0.2")
    one.correct(Decimal("0.7"), NOON_S)
    charge(one, 1, "0.2")


@given(st.sampled_from(Period), st.integers(0, 4_000_000_000))
def test_periods_follow_one_another_without_gap(period: Period, now_s: int) -> None:
    start_s, end_s = period_start_s(period, now_s), period_end_s(period, now_s)
    assert start_s <= now_s
    if end_s is not None:
        assert now_s < end_s
        assert period_start_s(period, end_s) == end_s
        assert period_start_s(period, end_s - 1) == start_s


@given(
    st.integers(1, 10**7),
    st.lists(st.tuples(st.integers(0, 10**11), st.integers(-1000, 10**6)), max_size=40),
    st.integers(0, 10**7),
)
def test_the_bucket_equals_exact_arithmetic(per_minute: int, events: list[tuple[int, int]], wanted: int) -> None:
    bucket = TokenBucket(per_minute, 0)
    level, now_ns = Fraction(per_minute), 0
    for elapsed_ns, num_tokens in events:
        now_ns += elapsed_ns
        level = min(Fraction(per_minute), level + Fraction(elapsed_ns * per_minute, MINUTE_NS))
        bucket.take(num_tokens, now_ns)
        level = min(Fraction(per_minute), level - num_tokens)
    wait_ns = bucket.wait_ns(wanted, now_ns)
    needed = min(wanted, per_minute)
    assert level + Fraction(wait_ns * per_minute, MINUTE_NS) >= needed
    assert wait_ns == 0 or level + Fraction((wait_ns - 1) * per_minute, MINUTE_NS) < needed
    assert bucket.view(now_ns).remaining_tokens == max(0, level.__floor__())


class Spending(RuleBasedStateMachine):
    """Requests enter, end in any order, and take time; a model with fractions says what must be left."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ns = 0
        self.one = account(tokens_per_minute=50, budget=Decimal(20))
        self.running: list[Charge] = []
        self.spent = Fraction(0)
        self.level = Fraction(50)

    @rule(num_tokens=st.integers(1, 120), cents=st.integers(0, 900))
    def enter(self, num_tokens: int, cents: int) -> None:
        cost = Decimal(cents) / 100
        reserved = self.spent + sum(Fraction(c.cost) for c in self.running)
        fits = reserved < 20 and reserved + Fraction(cost) <= 20 and self.level >= min(num_tokens, 50)
        outcome = self.one.try_charge(num_tokens, cost, self.now_ns, NOON_S)
        assert isinstance(outcome, Charge) == fits
        if isinstance(outcome, Charge):
            self.level -= num_tokens
            self.running.append(outcome)

    @precondition(lambda self: self.running)
    @rule(which=st.integers(0, 50), num_tokens=st.integers(0, 100), cents=st.integers(0, 900))
    def end(self, which: int, num_tokens: int, cents: int) -> None:
        charged = self.running.pop(which % len(self.running))
        self.level = min(Fraction(50), self.level - num_tokens + charged.num_tokens)
        self.one.settle(charged, num_tokens, Decimal(cents) / 100, self.now_ns, NOON_S)
        self.spent += Fraction(cents, 100)

    @precondition(lambda self: self.running)
    @rule(which=st.integers(0, 50), num_tokens=st.integers(0, 9), cents=st.integers(0, 300))
    def step(self, which: int, num_tokens: int, cents: int) -> None:
        charged = self.running[which % len(self.running)]
        cost = charged.cost + Decimal(cents) / 100
        total = charged.num_tokens + num_tokens
        refused = self.one.progress(charged, total, cost, self.now_ns, NOON_S)
        self.level = min(Fraction(50), self.level - num_tokens)
        assert (refused is not None) == (self.one.committed > 20)

    @rule(elapsed_ns=st.integers(0, 3 * MINUTE_NS))
    def wait(self, elapsed_ns: int) -> None:
        self.now_ns += elapsed_ns
        self.level = min(Fraction(50), self.level + Fraction(elapsed_ns * 50, MINUTE_NS))

    @invariant()
    def what_is_committed_is_what_was_spent_and_runs(self) -> None:
        assert Fraction(self.one.committed) == self.spent + sum(Fraction(c.cost) for c in self.running)


class StepsOfOneKey(RuleBasedStateMachine):
    """Streams of one key at up to three gateways of a server that hear each other, each told at its next step."""

    BUDGET = Decimal(30)

    def __init__(self) -> None:
        super().__init__()
        self.gateways = [account(budget=self.BUDGET) for _ in range(3)]
        self.open: list[tuple[int, Charge]] = []
        self.longest_step = Decimal(0)
        self.billed = Decimal(0)
        self.num_most_open = 0

    def tell(self, gateway: int, ended: Decimal = Decimal(0)) -> None:
        for other, one in enumerate(self.gateways):
            if other != gateway:
                one.runs_elsewhere(str(gateway), self.gateways[gateway].running)
                one.spent_elsewhere(ended, NOON_S)

    @rule(gateway=st.integers(0, 2), prompt=st.integers(0, 12))
    def enter(self, gateway: int, prompt: int) -> None:
        outcome = self.gateways[gateway].try_charge(prompt, Decimal(prompt), 0, NOON_S)
        if isinstance(outcome, Charge):
            self.open.append((gateway, outcome))
            self.num_most_open = max(self.num_most_open, len(self.open))
            self.tell(gateway)

    @precondition(lambda self: self.open)
    @rule(which=st.integers(0, 50), step=st.integers(1, 5), given_back=st.integers(0, 12))
    def step_of_one(self, which: int, step: int, given_back: int) -> None:
        gateway, charge = self.open[which % len(self.open)]
        self.longest_step = max(self.longest_step, Decimal(step))
        cost = max(Decimal(0), charge.cost - given_back) + step  # it was cached, as its first token tells
        refused = self.gateways[gateway].progress(charge, int(cost), cost, 0, NOON_S)
        if refused is not None:
            self.end(which % len(self.open))
        else:
            self.tell(gateway)

    @precondition(lambda self: self.open)
    @rule(which=st.integers(0, 50))
    def finish(self, which: int) -> None:
        self.end(which % len(self.open))

    def end(self, which: int) -> None:
        gateway, charge = self.open.pop(which)
        cost = charge.cost
        self.gateways[gateway].settle(charge, charge.num_tokens, cost, 0, NOON_S)
        self.billed += cost
        self.tell(gateway, cost)

    @invariant()
    def the_budget_is_exceeded_by_one_step_of_each_open_stream_at_most(self) -> None:
        running = sum((charge.cost for _, charge in self.open), Decimal(0))
        assert self.billed + running <= self.BUDGET + self.longest_step * self.num_most_open

    @invariant()
    def all_gateways_say_the_same(self) -> None:
        running = sum((charge.cost for _, charge in self.open), Decimal(0))
        assert {one.committed for one in self.gateways} == {self.billed + running}


def test_time_that_goes_back_begins_no_budget_anew() -> None:
    one = account(budget=Decimal(1), budget_period=Period.DAY)
    one.settle(charge(one, 1, "1"), 1, Decimal(1), 0, NOON_S)
    refusal(one, 1, "0.1", now_s=NOON_S - 86_400)
    refusal(one, 1, "0.1")
    charge(one, 1, "0.1", now_s=NOON_S + 86_400)


def test_a_charge_of_a_former_account_gives_nothing_back_to_the_next() -> None:
    """Limits that are taken away and set again while a request runs. Red when its end makes room that was not there."""
    running = charge(account(budget=Decimal(10)), 1, "9")
    again = account(budget=Decimal(10))
    again.settle(running, 1, Decimal(2), 0, NOON_S)
    assert again.committed == 2


def test_servers_that_do_not_hear_each_other_each_hold_the_budget() -> None:
    """The bound where several servers share a ledger, until they read each other's rows: the budget of each."""
    servers = [account(budget=Decimal(10)) for _ in range(3)]
    for one in servers:
        running = charge(one, 1, "0")
        while one.progress(running, 1, running.cost + 1, 0, NOON_S) is None:
            pass
        one.settle(running, 1, running.cost, 0, NOON_S)
    assert sum(one.committed for one in servers) == 3 * (10 + 1)
    for one in servers:
        one.correct(Decimal(33), NOON_S)
        refusal(one, 1, "0")


TestStepsOfOneKey = StepsOfOneKey.TestCase
TestStepsOfOneKey.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)

TestSpending = Spending.TestCase
TestSpending.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
