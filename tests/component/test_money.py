"""Money as a property: whatever happens to requests, keys and the database, in whatever order.

Billed is what was delivered, and what was computed by the rule of `policy.billing`; nothing is delivered for nothing; a
budget is exceeded by one step of each open stream at most; every request that was admitted has exactly one row after a
clean stop and the replay of the journal. Red when an order of events loses, doubles or gives away anything.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from metered_gateway import NOW_MS, PRICE, CountingLedgerMetrics, TroubledConnection
from scripted_gateway import MODEL, CountingClock

from relevo.core.errors import BudgetSpent, LedgerUnavailable
from relevo.core.outcome import Cause, Outcome, RequestEnd
from relevo.gateway.http.auth import Caller
from relevo.gateway.metering.accounts import Accounts
from relevo.gateway.metering.database import MemoryDatabase
from relevo.gateway.metering.journal import Journal, replay_journals
from relevo.gateway.metering.keys import KeyRecord
from relevo.gateway.metering.meter import Meter, UsageEntry
from relevo.gateway.metering.schema import prepare
from relevo.gateway.metering.writer import LedgerWriter
from relevo.policy.admission.key_limits import KeyLimits
from relevo.policy.billing.bill import Work
from relevo.policy.billing.pricing import BilledTokens, cost_of

BUDGET = Decimal("0.5")
KEYS = ("rich", "poor", "")  # without limits, with a budget, without a key
MAX_STEP = 4


@dataclass
class Running:
    """One admitted request, as the meter sees its generation."""

    key_id: str
    num_prompt_tokens: int
    is_streamed: bool
    name: str = ""
    num_cached: int = 0
    num_output: int = 0
    num_delivered: int = 0
    is_computed: bool = False
    cause: Cause | None = None
    entry: UsageEntry | None = None

    def work(self) -> Work:
        return Work(
            num_prompt_tokens=self.num_prompt_tokens,
            num_cached_tokens=self.num_cached,
            num_output_tokens=self.num_output,
            num_delivered_tokens=self.num_delivered,
            is_prompt_computed=self.is_computed,
        )

    def expected(self) -> BilledTokens:
        """The rule as the guide says it."""
        assert self.cause is not None
        whole = BilledTokens(num_prompt=self.num_prompt_tokens, num_cached=self.num_cached, num_output=self.num_output)
        if self.cause.outcome is Outcome.FINISHED:
            return whole
        if self.cause.outcome is Outcome.ABORTED:
            return whole if self.is_computed else BilledTokens()
        if not self.num_delivered:
            return BilledTokens()
        return BilledTokens(
            num_prompt=self.num_prompt_tokens, num_cached=self.num_cached, num_output=self.num_delivered
        )


@dataclass
class House:
    """A gateway's metering over a database that can be full or hang."""

    folder: Path
    connection: TroubledConnection = field(init=False)
    meter: Meter = field(init=False)
    running: list[Running] = field(default_factory=list)
    ended: list[Running] = field(default_factory=list)
    num_most_open: int = 0

    def __post_init__(self) -> None:
        inner = MemoryDatabase().connect()
        prepare(inner)
        self.connection, metrics = TroubledConnection(inner), CountingLedgerMetrics()
        self.meter = Meter(
            writer=LedgerWriter(self.connection, metrics, Journal(self.folder, "memory")),
            accounts=Accounts(),
            prices={MODEL: PRICE},
            clock=CountingClock(),
            now_ms=lambda: NOW_MS,
            metrics=metrics,
            commit_timeout_s=0.0,
        )
        record = dict.fromkeys(KeyRecord.__dataclass_fields__) | {"key_id": "poor", "limits": KeyLimits(budget=BUDGET)}
        self.meter.accounts.load([KeyRecord(**record)], 0, NOW_MS)  # type: ignore[arg-type]  # what accounts read of it

    def enter(self, key: int, num_prompt: int, is_streamed: bool) -> None:
        request = Running(KEYS[key % len(KEYS)], num_prompt, is_streamed, name=f"q{len(self.running + self.ended)}")
        caller = Caller(tenant=request.key_id, key_id=request.key_id)
        try:
            request.entry = self.meter.open(caller, MODEL, request.name, [request], {})
        except (BudgetSpent, LedgerUnavailable):
            return  # never admitted: no row
        self.running.append(request)
        self.num_most_open = max(self.num_most_open, len(self.running))

    async def step(self, which: int, num_tokens: int, num_cached: int) -> None:
        request = self.running[which % len(self.running)]
        if not request.is_computed:
            request.is_computed, request.num_cached = True, min(num_cached, request.num_prompt_tokens)
        request.num_output += num_tokens
        if request.is_streamed:
            request.num_delivered = request.num_output
        assert request.entry is not None
        try:
            request.entry.progress()
        except BudgetSpent:
            await self.end(which, Cause.BUDGET_SPENT)

    async def end(self, which: int, cause: Cause) -> None:
        request = self.running.pop(which % len(self.running))
        assert request.entry is not None
        request.cause = cause
        self.ended.append(request)
        if cause.outcome is Outcome.FINISHED:
            request.is_computed = True
            await request.entry.settle(RequestEnd(cause=cause))
        else:
            request.entry.close(RequestEnd(cause=cause))
        request.entry.close(RequestEnd(cause=Cause.INTERNAL))  # whatever comes after the end changes nothing

    async def stop(self) -> None:
        """Every answer is cut, then the process ends."""
        while self.running:
            await self.end(0, Cause.SERVER_STOPPED)
        await self.meter.hurry()
        await self.meter.writer.close(0.0)


causes = st.sampled_from([cause for cause in Cause if cause not in (Cause.BUDGET_SPENT, Cause.LEDGER_FAILED)])
number = st.integers(0, 30)
moves = st.one_of(
    st.tuples(st.just("enter"), number, st.integers(1, 40), st.booleans()),
    st.tuples(st.just("step"), number, st.integers(1, MAX_STEP), st.integers(0, 40)),
    st.tuples(st.just("step"), number, st.integers(1, MAX_STEP), st.integers(0, 40)),
    st.tuples(st.just("end"), number, causes),
    st.tuples(st.just("database"), st.sampled_from(["full", "hangs", "well"])),
)


@given(st.lists(moves, max_size=60))
@settings(max_examples=60, deadline=None)
def test_nothing_is_lost_doubled_or_given_away(tmp_path_factory: pytest.TempPathFactory, story: list[Any]) -> None:
    asyncio.run(_play(tmp_path_factory.mktemp("journal"), story))


async def _play(folder: Path, story: list[Any]) -> None:
    house = House(folder)
    house.meter.writer.start()
    try:
        for what, *how in story:
            if what == "enter":
                house.enter(*how)
            elif what == "database":
                house.connection.full = how[0] == "full"
                (house.connection.gate.clear if how[0] == "hangs" else house.connection.gate.set)()
            elif house.running:
                await (house.step(*how) if what == "step" else house.end(*how))
        await house.stop()
        house.connection.full = False
        house.connection.gate.set()
        replay_journals(folder, "memory", house.connection.inner)
        _judge(house)
    finally:
        house.connection.gate.set()


def _judge(house: House) -> None:
    columns = "response_id, key_id, outcome, cause, prompt_tokens, cached_tokens, completion_tokens, cost"
    rows = house.connection.inner.read(f"SELECT {columns} FROM usage_ledger")
    by_name = {row[0]: row for row in rows}
    assert len(rows) == len(by_name) == len(house.ended), "one row for each that was admitted"
    spent = Decimal(0)
    for request in house.ended:
        _, key_id, outcome, cause, *tokens, cost = by_name[request.name]
        billed = request.expected()
        assert (key_id, outcome, cause) == (request.key_id, request.cause.outcome, request.cause)  # type: ignore[union-attr]
        assert tuple(tokens) == (billed.num_prompt, billed.num_cached, billed.num_output)
        assert Decimal(str(cost)) == cost_of(PRICE, billed)
        assert not request.num_delivered or Decimal(str(cost)) > 0, "delivered for nothing"
        spent += Decimal(str(cost)) if request.key_id == "poor" else 0
    assert spent <= BUDGET + house.num_most_open * MAX_STEP * PRICE.output_cost_per_token
