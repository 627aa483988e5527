"""What a request is charged, and the one row that says what it used: opened when it enters, closed when it ends.

Owns the order: limits are asked before anything runs; the row is handed over at the request's single terminal event;
they are looked at again after each of its steps; an answer is completed only once its row is kept. Rules are
`policy.billing`'s and `policy.admission.key_limits`', rows are written by `metering.writer`. A row that is not kept in
time is replaced by that of a failure of ours, because that is what the client is told.
"""

from __future__ import annotations

import asyncio
import logging
import math
import uuid
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Protocol

from relevo.core.errors import BudgetSpent, KeyLimitReached, LedgerUnavailable, Unauthorized
from relevo.core.outcome import Cause, RequestEnd
from relevo.core.ports import Clock
from relevo.gateway.http.auth import Caller
from relevo.gateway.metering.accounts import Accounts
from relevo.gateway.metering.key_use import KeyUse, key_uses
from relevo.gateway.metering.keys import KeyRecord
from relevo.gateway.metering.ledger import LedgerRow
from relevo.gateway.metering.writer import LedgerWriter
from relevo.policy.admission.key_limits import Charge, Refused
from relevo.policy.billing.bill import Bill, Work, bill_for, num_rate_tokens, so_far
from relevo.policy.billing.pricing import EXACT, BilledTokens, ModelPrice, cost_of, plain

log = logging.getLogger("relevo.gateway.ledger")

COMMIT_TIMEOUT_S = 10.0  # how long a complete answer waits for its row; arbitrary, far above any healthy disk
MAX_PENDING_ROWS = 16_384  # arbitrary: some MB
UNAVAILABLE = "What requests use cannot be recorded at present, so none is taken; try again shortly."


class Metered(Protocol):
    """One prompt of a request; `gateway.generation.run` has it."""

    @property
    def num_prompt_tokens(self) -> int: ...

    def work(self) -> Work | None:
        """None: it never ran."""
        ...


class UsageEntry(Protocol):
    """One request's entry in the books. Whichever of `settle` and `close` comes first ends it."""

    def progress(self) -> None:
        """After every step of the request: count what it has used. Raises BudgetSpent, Unauthorized: then it ends."""
        ...

    async def settle(self, end: RequestEnd) -> None:
        """Return once the row is kept. Raises LedgerUnavailable: then it has failed, and is billed so."""
        ...

    def close(self, end: RequestEnd) -> None:
        """Hand the row over and do not wait."""
        ...


class UsageMeter(Protocol):
    @property
    def failure(self) -> str:
        """Why no request would be taken; empty if one would."""
        ...

    def key_uses(self) -> Sequence[KeyUse]:
        """Of API keys with limits, as they are now."""
        ...

    def open(
        self,
        caller: Caller,
        model: str,
        response_id: str,
        runs: Sequence[Metered],
        reply_headers: MutableMapping[str, str],
    ) -> UsageEntry:
        """Before anything runs. Raises KeyLimitReached, BudgetSpent, LedgerUnavailable."""
        ...


class MeterMetrics(Protocol):
    def admission_rejected(self, model: str, reason: str) -> None: ...

    def keys_read(self, *, is_up: bool) -> None: ...


def _set_event() -> asyncio.Event:
    event = asyncio.Event()
    event.set()
    return event


@dataclass(slots=True, kw_only=True)
class Meter:
    """`now_ms`: Unix milliseconds."""

    writer: LedgerWriter
    accounts: Accounts
    prices: Mapping[str, ModelPrice]  # of every served name
    clock: Clock
    now_ms: Callable[[], int]
    metrics: MeterMetrics
    why_ended: Callable[[Caller], str] = lambda caller: ""  # why a key may not be used any more; empty: it may
    key_records: Callable[[], Iterable[KeyRecord]] = lambda: ()  # of all API keys
    commit_timeout_s: float = COMMIT_TIMEOUT_S
    keys_failure: str = ""  # why API keys cannot be read; empty if they can
    all_closed: asyncio.Event = field(default_factory=_set_event)  # no entry is open
    _num_open: int = 0

    @property
    def failure(self) -> str:
        if self.writer.failure:
            return "the usage ledger cannot be written"
        if self.writer.num_pending >= MAX_PENDING_ROWS:
            return "too many rows wait to be written to the usage ledger"
        return self.keys_failure

    def open(
        self,
        caller: Caller,
        model: str,
        response_id: str,
        runs: Sequence[Metered],
        reply_headers: MutableMapping[str, str],
    ) -> UsageEntry:
        if self.failure:
            self.metrics.admission_rejected(model, "ledger")
            raise LedgerUnavailable(UNAVAILABLE, retry_after_s=1.0)
        price = self.prices[model]
        num_tokens = sum(run.num_prompt_tokens for run in runs)
        cost = cost_of(price, BilledTokens(num_prompt=num_tokens))
        now_ns, now_ms = self.clock.now_ns(), self.now_ms()
        charge = self.accounts.try_charge(caller.key_id, num_tokens, cost, now_ns, now_ms)
        self._tell_rate(caller, now_ns, reply_headers)
        if isinstance(charge, Refused):
            self.metrics.admission_rejected(model, charge.limit)
            raise _refusal(charge)
        self._num_open += 1
        self.all_closed.clear()
        return OpenUsageEntry(self, caller, model, response_id, runs, price, charge, now_ms)

    def key_uses(self) -> Sequence[KeyUse]:
        return key_uses(self.accounts, self.key_records(), self.clock.now_ns(), self.now_ms())

    async def hurry(self) -> None:
        """The process ends soon: answers wait for the journal instead of the database."""
        self.commit_timeout_s = 0.0
        await self.writer.spill(gives_up=True)

    def entry_closed(self) -> None:
        self._num_open -= 1
        if not self._num_open:
            self.all_closed.set()

    def _tell_rate(self, caller: Caller, now_ns: int, reply_headers: MutableMapping[str, str]) -> None:
        rate = self.accounts.rate(caller.key_id, now_ns)
        if rate is not None:
            reply_headers["x-ratelimit-limit-tokens"] = str(rate.limit_tokens)
            reply_headers["x-ratelimit-remaining-tokens"] = str(rate.remaining_tokens)
            reply_headers["x-ratelimit-reset-tokens"] = f"{math.ceil(rate.reset_s * 1000) / 1000}s"


@dataclass(slots=True)
class OpenUsageEntry:
    meter: Meter
    caller: Caller
    model: str
    response_id: str
    runs: Sequence[Metered]
    price: ModelPrice
    charge: Charge
    started_at_ms: int
    _request_id: str = field(default_factory=lambda: uuid.uuid4().hex)  # never the client's: it names the row
    _is_closed: bool = False

    def progress(self) -> None:
        meter, key_id = self.meter, self.caller.key_id
        if not key_id:
            return
        if reason := meter.why_ended(self.caller):
            raise Unauthorized(reason)
        if not meter.accounts.is_limited(key_id):
            return
        used = so_far(self._works())
        num_tokens = used.num_prompt - used.num_cached + used.num_output
        cost = cost_of(self.price, used)
        refused = meter.accounts.progress(key_id, self.charge, num_tokens, cost, meter.clock.now_ns(), meter.now_ms())
        if refused is not None:
            raise _refusal(refused)

    async def settle(self, end: RequestEnd) -> None:
        row = self._close(end)
        if row is None:
            return
        writer = self.meter.writer
        kept = writer.put_and_tell(row)
        await asyncio.wait((kept,), timeout=self.meter.commit_timeout_s)
        if not kept.done():
            await writer.spill()
        if not kept.done() or kept.exception() is not None:
            log.error(
                "a row of the usage ledger was not kept in time, its request fails response_id=%s", row.response_id
            )
            self._take_back(row)
            raise LedgerUnavailable("The use of this request could not be recorded.")

    def close(self, end: RequestEnd) -> None:
        row = self._close(end)
        if row is not None:
            self.meter.writer.put(row)

    def _close(self, end: RequestEnd) -> LedgerRow | None:
        """The row, once; None if it was closed before or nothing ever ran."""
        if self._is_closed:
            return None
        self._is_closed = True
        self.meter.entry_closed()
        works = self._works()
        bill = bill_for(end.outcome, works)
        row = self._row(end.cause, bill)
        num_tokens = num_rate_tokens(end.outcome, bill, self.charge.num_tokens)
        self._settle_charge(self.charge, num_tokens, Decimal(row.cost), row.ended_at_ms)
        return row if works else None

    def _take_back(self, row: LedgerRow) -> None:
        """What was delivered is billed all the same."""
        cause = Cause.LEDGER_FAILED
        taken_back = self._row(cause, bill_for(cause.outcome, self._works()))
        taken_back = replace(taken_back, started_at_ms=row.started_at_ms, ended_at_ms=row.ended_at_ms)
        self.meter.writer.put(taken_back)
        difference = EXACT.subtract(Decimal(taken_back.cost), Decimal(row.cost))
        self._settle_charge(Charge(), 0, difference, row.ended_at_ms)

    def _works(self) -> list[Work]:
        return [work for run in self.runs if (work := run.work()) is not None]

    def _settle_charge(self, charge: Charge, num_tokens: int, cost: Decimal, ended_at_ms: int) -> None:
        now_ns = self.meter.clock.now_ns()
        self.meter.accounts.settle(self.caller.key_id, charge, num_tokens, cost, now_ns, ended_at_ms)

    def _row(self, cause: Cause, bill: Bill) -> LedgerRow:
        price = self.price
        return LedgerRow(
            request_id=self._request_id,
            response_id=self.response_id,
            key_id=self.caller.key_id,
            tenant=self.caller.tenant,
            model=self.model,
            outcome=str(cause.outcome),
            cause=str(cause),
            prompt_tokens=bill.billed.num_prompt,
            cached_tokens=bill.billed.num_cached,
            completion_tokens=bill.billed.num_output,
            unbilled_prompt_tokens=bill.num_unbilled_prompt_tokens,
            unbilled_completion_tokens=bill.num_unbilled_output_tokens,
            input_cost_per_token=plain(price.input_cost_per_token),
            cache_read_input_token_cost=plain(price.cache_read_input_token_cost),
            output_cost_per_token=plain(price.output_cost_per_token),
            cost=plain(cost_of(price, bill.billed)),
            started_at_ms=self.started_at_ms,
            ended_at_ms=self.meter.now_ms(),
        )


class NoMeter:
    """No key is limited and nothing is written."""

    failure = ""

    def key_uses(self) -> Sequence[KeyUse]:
        return ()

    def open(
        self,
        caller: Caller,
        model: str,
        response_id: str,
        runs: Sequence[Metered],
        reply_headers: MutableMapping[str, str],
    ) -> UsageEntry:
        return self

    def progress(self) -> None:
        return

    async def settle(self, end: RequestEnd) -> None:
        return

    def close(self, end: RequestEnd) -> None:
        return


def _refusal(refused: Refused) -> KeyLimitReached | BudgetSpent:
    if refused.limit == "budget":
        return BudgetSpent(refused.reason, retry_after_s=refused.retry_after_s)
    return KeyLimitReached(refused.reason, retry_after_s=refused.retry_after_s or 1.0)
