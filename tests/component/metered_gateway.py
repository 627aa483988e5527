"""The scripted gateway with a real meter over a database in memory, whose writes can be made to fail or to wait."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from scripted_gateway import MODEL, CountingClock, Rig, Step, rig

from relevo.core.request import EngineRequest
from relevo.gateway.http.auth import ApiKeys
from relevo.gateway.metering.accounts import Accounts
from relevo.gateway.metering.database import Connection, DatabaseError, MemoryDatabase, Parameters, Row, Statement
from relevo.gateway.metering.journal import Journal
from relevo.gateway.metering.key_ring import KeyRing
from relevo.gateway.metering.keys import KeyRecord, create_key
from relevo.gateway.metering.ledger import LedgerRow
from relevo.gateway.metering.meter import Meter
from relevo.gateway.metering.refresh import MeteringRefresh
from relevo.gateway.metering.schema import prepare
from relevo.gateway.metering.writer import LedgerWriter
from relevo.policy.admission.key_limits import KeyLimits
from relevo.policy.billing.pricing import ModelPrice

PRICE = ModelPrice(
    input_cost_per_token=Decimal("0.003"),
    cache_read_input_token_cost=Decimal("0.0007"),
    output_cost_per_token=Decimal("0.02"),
)
NOW_MS = 1_796_000_400_000


@dataclass
class TroubledConnection:
    """Passes on; `full` fails every write, `gate` (when cleared) holds writes back."""

    inner: Connection
    full: bool = False
    gate: threading.Event = field(default_factory=threading.Event)
    num_writes: int = 0

    def __post_init__(self) -> None:
        self.gate.set()

    def write(self, statements: Sequence[Statement]) -> None:
        self.num_writes += 1
        self.gate.wait()
        if self.full:
            raise DatabaseError("database or disk is full")
        self.inner.write(statements)

    def read(self, sql: str, parameters: Parameters | None = None) -> list[Row]:
        return self.inner.read(sql, parameters)

    def close(self) -> None:
        self.inner.close()


@dataclass
class CountingLedgerMetrics:
    outcomes: list[str] = field(default_factory=list)
    num_failures: int = 0
    rejections: list[str] = field(default_factory=list)
    is_up: bool = True
    num_journaled: int = 0
    keys_are_up: bool = True

    def ledger_kept(self, outcomes: Sequence[str], commit_s: float) -> None:
        self.outcomes.extend(outcomes)

    def ledger_failed(self) -> None:
        self.num_failures += 1

    def ledger_pending(self, num_rows: int, *, is_up: bool) -> None:
        self.is_up = is_up

    def ledger_journaled(self, num_rows: int) -> None:
        self.num_journaled += num_rows

    def keys_read(self, *, is_up: bool) -> None:
        self.keys_are_up = is_up

    def admission_rejected(self, model: str, reason: str) -> None:
        self.rejections.append(reason)


@dataclass
class Metered:
    rig: Rig
    meter: Meter
    connection: TroubledConnection
    refresh: MeteringRefresh
    metrics: CountingLedgerMetrics

    def rows(self) -> list[LedgerRow]:
        columns = tuple(LedgerRow.__dataclass_fields__)
        found = self.connection.read(f"SELECT {', '.join(columns)} FROM usage_ledger ORDER BY ended_at_ms, request_id")
        return [LedgerRow(**dict(zip(columns, row, strict=True))) for row in found]  # type: ignore[arg-type]

    async def make_key(self, **limits: Any) -> tuple[str, KeyRecord]:
        """A new key that the gateway knows already."""
        key, record = create_key(
            self.connection.inner,
            name="",
            tenant=limits.pop("tenant", None),
            is_admin=limits.pop("is_admin", False),
            best_priority=limits.pop("best_priority", 0),
            limits=KeyLimits(**limits),
            expires_at_ms=None,
            now_ms=NOW_MS,
        )
        await self.refresh.refresh(only_new=True)
        return key, record

    async def written(self) -> list[LedgerRow]:
        """The rows once all that were handed over are written."""
        await self.meter.writer.close(30.0)
        return self.rows()


async def until(condition: Callable[[], bool]) -> None:
    """Give way until it holds; what it looks at is changed by the writer's thread."""
    while not condition():  # noqa: ASYNC110  # threads set no asyncio.Event
        await asyncio.sleep(0)


@contextlib.asynccontextmanager
async def metered(
    script: Sequence[Step] | Callable[[EngineRequest], Sequence[Step]] = (),
    num_cached: int = 0,
    *,
    commit_timeout_s: float = 60.0,
    journal: Journal | None = None,
    **context: Any,
) -> AsyncIterator[Metered]:
    inner = MemoryDatabase().connect()
    prepare(inner)
    connection = TroubledConnection(inner)
    metrics, clock, key_ring = CountingLedgerMetrics(), CountingClock(), KeyRing(ApiKeys(), lambda: NOW_MS)
    writer = LedgerWriter(connection, metrics, journal)
    meter = Meter(
        writer=writer,
        accounts=Accounts(),
        prices={MODEL: PRICE, "alias/of-tiny": PRICE},
        clock=clock,
        now_ms=lambda: NOW_MS,
        metrics=metrics,
        commit_timeout_s=commit_timeout_s,
        why_ended=key_ring.why_ended,
    )
    refresh = MeteringRefresh(connection, key_ring, meter)
    writer.start()
    try:
        r = rig(script, num_cached, meter=meter, usage=refresh, api_keys=key_ring, **context)
        yield Metered(r, meter, connection, refresh, metrics)
    finally:
        connection.gate.set()
        connection.full = False
        await writer.close(30.0)
