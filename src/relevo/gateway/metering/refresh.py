"""Keeps the gateway's copy of API keys and of what they have spent true to the database, and answers usage queries.

Reads on connections and threads of its own, never in the way of a commit. While the database cannot be read no request
is taken: a revoked key must not go on working for as long as an outage lasts.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from decimal import Decimal

from relevo.gateway.metering.accounts import SpentQuestion
from relevo.gateway.metering.database import Connection, DatabaseError
from relevo.gateway.metering.key_ring import KeyRing
from relevo.gateway.metering.keys import KeyRecord, keys_revision, list_keys
from relevo.gateway.metering.keys_marker import KeysMarker
from relevo.gateway.metering.ledger import GroupBy, UsageFilter, UsageSum, total_of, usage_sums
from relevo.gateway.metering.meter import Meter

log = logging.getLogger("relevo.gateway.keys")

ANSWER_S = 5.0  # for the database to answer, before no request is taken; arbitrary
REFRESH_S = 1.0  # a revoked key works for no longer than that, and one query
CORRECT_EVERY = 10  # refreshes between two looks at what keys have spent; arbitrary


class MeteringRefresh:
    def __init__(
        self, connection: Connection, key_ring: KeyRing, meter: Meter, marker: KeysMarker | None = None
    ) -> None:
        """`marker`: None where nothing is kept."""
        self._connection = connection
        self._marker = marker
        self._key_ring = key_ring
        self._meter = meter
        self._revision = -1  # of the keys that are loaded

    async def run(self) -> None:
        """For ever."""
        num_refreshes = 0
        while True:
            await asyncio.sleep(REFRESH_S)
            num_refreshes += 1
            await self.try_refresh(only_new=num_refreshes % CORRECT_EVERY != 0)

    async def try_refresh(self, *, only_new: bool) -> None:
        """As `refresh`; while it fails or does not answer, no request is taken."""
        refreshing = asyncio.ensure_future(self.refresh(only_new=only_new))
        try:
            done, _ = await asyncio.wait((refreshing,), timeout=ANSWER_S)
            if not done:
                self._failed(f"the database has not answered for {ANSWER_S:g} s")
            await refreshing  # not again beside it: what hangs would pile up
        except DatabaseError as error:
            self._failed(str(error))
        else:
            if self._meter.keys_failure:
                log.warning("API keys can be read again")
            self._meter.keys_failure = ""
            self._meter.metrics.keys_read(is_up=True)
        finally:
            refreshing.cancel()

    def _failed(self, reason: str) -> None:
        if not self._meter.keys_failure:
            log.error("API keys cannot be read, no request is taken until they can: %s", reason)
        self._meter.keys_failure = "the API keys cannot be read"
        self._meter.metrics.keys_read(is_up=False)

    async def refresh(self, *, only_new: bool) -> None:
        """Load changed keys; correct what limited keys have spent. Raises DatabaseError."""
        meter = self._meter
        changed = await asyncio.to_thread(self._changed_keys, self._revision)
        if changed is not None:
            self._revision, records = changed
            self._key_ring.load(records)
            meter.accounts.load(records, meter.clock.now_ns(), meter.now_ms())
        questions = meter.accounts.questions(meter.now_ms(), meter.writer.oldest_pending_ms, only_new=only_new)
        if questions:
            answers = await asyncio.to_thread(self._spent, questions)
            meter.accounts.correct(questions, answers, meter.now_ms())

    async def usage(self, group_by: Sequence[GroupBy], where: UsageFilter) -> list[UsageSum]:
        """Raises DatabaseError."""
        return await asyncio.to_thread(usage_sums, self._connection, group_by, where)

    def _changed_keys(self, revision: int) -> tuple[int, list[KeyRecord]] | None:
        """None: they are as they were."""
        now = keys_revision(self._connection)
        if now == revision:
            return None
        records = list_keys(self._connection)
        if records and self._marker is not None:
            with contextlib.suppress(OSError):  # told at the start
                self._marker.leave()
        return now, records

    def _spent(self, questions: Sequence[SpentQuestion]) -> list[Decimal]:
        answers = []
        for question in questions:
            where = UsageFilter(since_ms=question.since_ms, until_ms=question.until_ms, key_id=question.key_id)
            answers.append(total_of(usage_sums(self._connection, (), where)).cost)
        return answers
