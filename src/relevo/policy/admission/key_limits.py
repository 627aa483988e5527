"""What one API key may use: tokens per minute, and a budget in currency.

A request is charged its prompt when it enters, its output as it is computed, and what it really used when it ends:
cached prompt tokens and prompts that were never computed are given back. A budget is looked at after every step of
every request, so a key exceeds it by one step of each open stream at most. Tokens per minute end no request: a key can
overshoot them by the output of what runs, which is paid back before its next request enters.

Owns the counts of one key. Integers and decimals only; both clocks are arguments. Unix time that goes back begins no
period anew.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from enum import StrEnum

from relevo.policy.billing.pricing import EXACT, exact_sum, plain

_NS_PER_MINUTE = 60_000_000_000


class Period(StrEnum):
    """What a budget is for; days and months are those of UTC."""

    TOTAL = "total"
    DAY = "day"
    MONTH = "month"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyLimits:
    tokens_per_minute: int | None = None  # at least 1
    budget: Decimal | None = None
    budget_period: Period = Period.TOTAL


@dataclass(slots=True, kw_only=True, eq=False)
class Charge:
    """What a request has been charged up to now; handed back to `settle` once."""

    num_tokens: int = 0
    cost: Decimal = Decimal(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    limit: str  # "tokens_per_minute" or "budget"
    reason: str  # one sentence
    retry_after_s: float | None  # None: waiting does not help


@dataclass(frozen=True, slots=True, kw_only=True)
class RateView:
    """For response headers."""

    limit_tokens: int
    remaining_tokens: int
    reset_s: float  # until the whole limit is there again


def period_start_s(period: Period, now_unix_s: float) -> int:
    """Unix seconds; 0 for the whole time."""
    if period is Period.TOTAL:
        return 0
    midnight = datetime.fromtimestamp(now_unix_s, UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    start = midnight if period is Period.DAY else midnight.replace(day=1)
    return int(start.timestamp())


def period_end_s(period: Period, now_unix_s: float) -> int | None:
    """Unix seconds; None if it never ends."""
    if period is Period.TOTAL:
        return None
    longest_s = 86_400 if period is Period.DAY else 31 * 86_400
    start_s = period_start_s(period, now_unix_s)
    return period_start_s(period, start_s + longest_s + (0 if period is Period.DAY else 86_400))


class TokenBucket:
    """Holds one minute's tokens, fills continuously. Level in token x ns-per-minute units, so that time is exact."""

    def __init__(self, tokens_per_minute: int, now_ns: int) -> None:
        assert tokens_per_minute >= 1
        self.tokens_per_minute = tokens_per_minute
        self._level = self._capacity
        self._filled_at_ns = now_ns

    @property
    def _capacity(self) -> int:
        return self.tokens_per_minute * _NS_PER_MINUTE

    def wait_ns(self, num_tokens: int, now_ns: int) -> int:
        """Until `num_tokens` may be taken; 0 is now. More than a minute's tokens wait for a full bucket."""
        self._fill(now_ns)
        missing = min(num_tokens * _NS_PER_MINUTE, self._capacity) - self._level
        return max(0, -(-missing // self.tokens_per_minute))

    def take(self, num_tokens: int, now_ns: int) -> None:
        """The level may fall below zero; negative numbers give back, to a full bucket at most."""
        self._fill(now_ns)
        self._level = min(self._capacity, self._level - num_tokens * _NS_PER_MINUTE)

    def view(self, now_ns: int) -> RateView:
        self._fill(now_ns)
        missing = self._capacity - self._level
        return RateView(
            limit_tokens=self.tokens_per_minute,
            remaining_tokens=max(0, self._level // _NS_PER_MINUTE),
            reset_s=missing / self.tokens_per_minute / 1e9,
        )

    def _fill(self, now_ns: int) -> None:
        elapsed_ns = max(0, now_ns - self._filled_at_ns)
        self._level = min(self._capacity, self._level + elapsed_ns * self.tokens_per_minute)
        self._filled_at_ns = max(now_ns, self._filled_at_ns)


class KeyAccount:
    """The counts of one key. `spent` is what the ledger says or will say for the present budget period."""

    def __init__(self, limits: KeyLimits, now_ns: int, now_unix_s: float) -> None:
        self._limits = limits
        self._bucket = _bucket(limits, now_ns)
        self._open: set[Charge] = set()  # of requests that run
        self._reserved = Decimal(0)  # the sum of their costs
        self._elsewhere: dict[str, Decimal] = {}  # of requests that run at other gateways, by gateway
        self._spent = Decimal(0)  # of requests that have ended
        self._period_start_s = period_start_s(limits.budget_period, now_unix_s)

    @property
    def limits(self) -> KeyLimits:
        return self._limits

    @property
    def committed(self) -> Decimal:
        """Spent, and reserved for what runs."""
        return exact_sum((self._spent, self._reserved, *self._elsewhere.values()))

    def used(self, now_unix_s: float) -> Decimal:
        """`committed`, of the period that is now."""
        self._roll(now_unix_s)
        return self.committed

    @property
    def running(self) -> Decimal:
        """Reserved for what runs here."""
        return self._reserved

    def change_limits(self, limits: KeyLimits, now_ns: int, now_unix_s: float) -> None:
        """A new rate starts with a full bucket; what was spent stays, unless the period is another one."""
        if limits.tokens_per_minute != self._limits.tokens_per_minute:
            self._bucket = _bucket(limits, now_ns)
        if limits.budget_period is not self._limits.budget_period:
            self._period_start_s, self._spent = period_start_s(limits.budget_period, now_unix_s), Decimal(0)
        self._limits = limits
        self._roll(now_unix_s)

    def try_charge(self, num_tokens: int, cost: Decimal, now_ns: int, now_unix_s: float) -> Charge | Refused:
        """`num_tokens`, `cost`: of the whole prompt, none of it cached."""
        self._roll(now_unix_s)
        refused = self._over_budget(cost, now_unix_s) or self._over_rate(num_tokens, now_ns)
        if refused is not None:
            return refused
        charge = Charge()
        self._set(charge, num_tokens, cost, now_ns)
        return charge

    def progress(
        self, charge: Charge, num_tokens: int, cost: Decimal, now_ns: int, now_unix_s: float
    ) -> Refused | None:
        """The request has used so much up to now. Refused: more than the key has, so it must end."""
        self._roll(now_unix_s)
        self._set(charge, num_tokens, cost, now_ns)
        budget = self._limits.budget
        if budget is None or self.committed <= budget:
            return None
        return self._refused("is used up", budget, now_unix_s)

    def settle(self, charge: Charge, num_tokens: int, cost: Decimal, now_ns: int, now_unix_s: float) -> None:
        """The request has ended and used `num_tokens` (cached ones not counted) for `cost`."""
        self._roll(now_unix_s)
        self._set(charge, num_tokens, cost, now_ns)
        self._open.discard(charge)
        self._reserved = EXACT.subtract(self._reserved, charge.cost)
        self._spent = EXACT.add(self._spent, cost)

    def _set(self, charge: Charge, num_tokens: int, cost: Decimal, now_ns: int) -> None:
        """A charge that was begun before the key had limits is taken over whole."""
        is_known = charge in self._open
        if self._bucket is not None:
            self._bucket.take(num_tokens - (charge.num_tokens if is_known else 0), now_ns)
        self._reserved = exact_sum((self._reserved, cost, charge.cost.copy_negate() if is_known else Decimal(0)))
        self._open.add(charge)
        charge.num_tokens, charge.cost = num_tokens, cost

    def runs_elsewhere(self, gateway_id: str, cost: Decimal) -> None:
        """What requests of the key that run at another gateway have used up to now, all together."""
        self._elsewhere.pop(gateway_id, None)
        if cost:
            self._elsewhere[gateway_id] = cost

    def spent_elsewhere(self, cost: Decimal, now_unix_s: float) -> None:
        """A request has ended at another gateway."""
        self._roll(now_unix_s)
        self._spent = EXACT.add(self._spent, cost)

    def taken_elsewhere(self, num_tokens: int, now_ns: int) -> None:
        """Another gateway took so many tokens of the minute, or gave them back."""
        if self._bucket is not None:
            self._bucket.take(num_tokens, now_ns)

    def correct(self, spent: Decimal, now_unix_s: float) -> None:
        """What the ledger says of the present period; other gateways write to it too."""
        self._period_start_s = period_start_s(self._limits.budget_period, now_unix_s)
        self._spent = spent

    def rate(self, now_ns: int) -> RateView | None:
        return None if self._bucket is None else self._bucket.view(now_ns)

    def _over_budget(self, cost: Decimal, now_unix_s: float) -> Refused | None:
        budget = self._limits.budget
        if budget is None or (self.committed < budget and EXACT.add(self.committed, cost) <= budget):
            return None
        return self._refused("does not cover this request", budget, now_unix_s)

    def _refused(self, what: str, budget: Decimal, now_unix_s: float) -> Refused:
        period = self._limits.budget_period
        named = {Period.TOTAL: "", Period.DAY: " for today", Period.MONTH: " for this month"}[period]
        end_s = period_end_s(period, now_unix_s)
        until = "" if end_s is None else f"; the next one begins at {datetime.fromtimestamp(end_s, UTC):%Y-%m-%d} UTC"
        return Refused(
            limit="budget",
            reason=f"The budget of this API key{named}, {plain(budget)}, {what}{until}.",
            retry_after_s=None if end_s is None else end_s - now_unix_s,
        )

    def _over_rate(self, num_tokens: int, now_ns: int) -> Refused | None:
        if self._bucket is None:
            return None
        wait_ns = self._bucket.wait_ns(num_tokens, now_ns)
        if wait_ns == 0:
            return None
        wait_s = wait_ns / 1e9
        return Refused(
            limit="tokens_per_minute",
            reason=(
                f"This API key may use {self._bucket.tokens_per_minute} tokens a minute and has used them; "
                f"there is room for this request in {wait_s:.1f} s."
            ),
            retry_after_s=wait_s,
        )

    def _roll(self, now_unix_s: float) -> None:
        start_s = period_start_s(self._limits.budget_period, now_unix_s)
        if start_s > self._period_start_s:
            self._period_start_s = start_s
            self._spent = Decimal(0)


def _bucket(limits: KeyLimits, now_ns: int) -> TokenBucket | None:
    return None if limits.tokens_per_minute is None else TokenBucket(limits.tokens_per_minute, now_ns)
