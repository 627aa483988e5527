"""Composition of metering in a gateway: the parts that count, check and write."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import astuple, dataclass
from decimal import Decimal
from functools import partial
from pathlib import Path

from relevo.build.configs import GatewayConfig
from relevo.build.ledger import open_database
from relevo.core.errors import StartError
from relevo.core.ports import Clock
from relevo.gateway.answers.database import DatabaseAnswers
from relevo.gateway.answers.memory import MemoryAnswers
from relevo.gateway.answers.store import AnswerStore
from relevo.gateway.http.auth import ApiKeys
from relevo.gateway.metering.accounts import Accounts
from relevo.gateway.metering.database import Connection, DatabaseError, name_within
from relevo.gateway.metering.journal import Journal, replay_journals
from relevo.gateway.metering.key_ring import KeyRing
from relevo.gateway.metering.keys_marker import KeysMarker
from relevo.gateway.metering.meter import Meter
from relevo.gateway.metering.refresh import MeteringRefresh
from relevo.gateway.metering.schema import prepare
from relevo.gateway.metering.writer import LedgerWriter
from relevo.gateway.requests.report import report_of
from relevo.gateway.requests.store import DatabaseReports
from relevo.policy.billing.pricing import FREE, ModelPrice
from relevo.telemetry.metrics import GatewayMetrics

LAST_TABS_S = 0.5  # for requests that were cut off to hand their rows over; arbitrary
CLOSE_S = 2.0  # for the database to take the rows that wait when the gateway ends; arbitrary, then the journal has them
CLOSE_REPORTS_S = 1.0  # for the last reports of requests; arbitrary, what is late is left
CLOSE_CONNECTION_S = 0.5  # for a database to let go of a connection; arbitrary


@dataclass(frozen=True, slots=True, kw_only=True)
class Metering:
    """The parts that run in a gateway. `connections` are closed when it ends."""

    key_ring: KeyRing
    meter: Meter
    refresh: MeteringRefresh
    writer: LedgerWriter
    answers: AnswerStore
    reports: DatabaseReports | None  # None: none are kept
    connections: tuple[Connection, ...]

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Keys are loaded before the first request; rows that wait are written at the end. Raises StartError."""
        self.writer.start()
        try:
            try:
                await self.refresh.refresh(only_new=True)
            except DatabaseError as error:
                raise StartError(f"API keys cannot be read: {error}") from error
            refreshing = asyncio.create_task(self.refresh.run(), name="metering")
            try:
                yield
            finally:
                refreshing.cancel()
                await asyncio.gather(refreshing, return_exceptions=True)
        finally:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LAST_TABS_S):
                    await self.meter.all_closed.wait()  # of requests that were cut off
            await self.writer.close(CLOSE_S)
            if self.reports is not None:
                await asyncio.to_thread(self.reports.close, CLOSE_REPORTS_S)
            if not self.writer.is_stuck:
                closing = threading.Thread(target=self._close_connections, daemon=True)
                closing.start()
                closing.join(CLOSE_CONNECTION_S)  # nothing else runs any more

    def _close_connections(self) -> None:
        for connection in self.connections:
            connection.close()


def build_metering(config: GatewayConfig, metrics: GatewayMetrics, clock: Clock) -> Metering:
    """Raises StartError."""
    try:
        database = open_database(config.database, fsync=config.ledger_fsync)
        writing, reading, keeping = database.connect(), database.connect(), database.connect()
        telling = (database.connect(), database.connect()) if config.ledger_timelines else ()
        prepare(writing)
        journal = marker = None
        if config.journal_dir:
            folder = Path(config.journal_dir)
            name = name_within(folder.parent, database.name)
            marker = KeysMarker(folder.parent, database.name)
            metrics.ledger_replayed(*astuple(replay_journals(folder, name, writing)))
            journal = Journal(folder, name, fsync=config.ledger_fsync)
    except DatabaseError as error:
        raise StartError(f"the usage database cannot be used: {error}") from error
    writer = LedgerWriter(writing, metrics, journal)
    is_closed = config.require_keys or (marker is not None and marker.exists)
    fixed, admins = (ApiKeys(keys, config.best_priority) for keys in (config.api_key_hashes, config.admin_key_hashes))
    key_ring = KeyRing(fixed, unix_ms, is_closed=is_closed, admins=admins)
    meter = Meter(
        writer=writer,
        accounts=Accounts(),
        prices=_model_prices(config),
        clock=clock,
        now_ms=never_back(unix_ms),
        metrics=metrics,
        why_ended=key_ring.why_ended,
        key_records=lambda: key_ring.records,
    )
    return Metering(
        key_ring=key_ring,
        meter=meter,
        refresh=MeteringRefresh(reading, key_ring, meter, marker),
        writer=writer,
        answers=_answers(config, keeping),
        reports=_reports(config, telling),
        connections=(writing, reading, keeping, *telling),
    )


def _answers(config: GatewayConfig, connection: Connection) -> AnswerStore:
    """Without a database that stays they are bounded."""
    if config.database == "memory":
        return MemoryAnswers(config.response_lifetime_s)
    return DatabaseAnswers(connection, config.response_lifetime_s)


def _reports(config: GatewayConfig, connections: Sequence[Connection]) -> DatabaseReports | None:
    if not connections:
        return None
    writing, reading = connections
    return DatabaseReports(writing, reading, config.ledger_timelines, partial(report_of, gateway_id=config.gateway_id))


def unix_ms() -> int:
    return time.time_ns() // 1_000_000


def never_back(now_ms: Callable[[], int]) -> Callable[[], int]:
    """A clock that stands still while `now_ms` is behind what it said before: rows and sums follow one another."""
    latest = 0

    def now() -> int:
        nonlocal latest
        latest = max(latest, now_ms())
        return latest

    return now


def _model_prices(config: GatewayConfig) -> dict[str, ModelPrice]:
    prices = dict.fromkeys(config.served_model_names, FREE)
    for name, price in config.prices.items():
        prices[name] = ModelPrice(
            input_cost_per_token=Decimal(price.input_cost_per_token),
            cache_read_input_token_cost=Decimal(price.cache_read_input_token_cost),
            output_cost_per_token=Decimal(price.output_cost_per_token),
        )
    return prices
