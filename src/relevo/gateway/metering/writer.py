"""Writes ledger rows on a thread of its own: what waits is one transaction, and the meter can hear when a row is kept.

Group commit: while one transaction is under way new rows gather for the next one; nothing is delayed on purpose. A
transaction that fails is repeated until it succeeds, in order; `failure` says so meanwhile, and the meter takes no new
requests. So rows that wait are bounded by what was running. Meanwhile they are kept in the journal, as is what the
database has not taken when the process ends; a row that the journal does not take either is logged. Called from the
event loop's thread only.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import queue
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Protocol, TypeVar

from relevo.gateway.metering.database import Connection, DatabaseError
from relevo.gateway.metering.journal import Journal, JournalError
from relevo.gateway.metering.ledger import LedgerRow, put_rows

T = TypeVar("T")
log = logging.getLogger("relevo.gateway.ledger")

MAX_ROWS_PER_COMMIT = 512  # arbitrary; bounds how long one transaction may take
STUCK_S = 0.25  # for a thread that was told to end; arbitrary
JOURNAL_S = 1.0  # for the last rows to reach the journal; arbitrary
_RETRY_S = (0.05, 0.2, 0.5, 1.0, 2.0)  # arbitrary: quick first, then polite


class LedgerMetrics(Protocol):
    def ledger_kept(self, outcomes: Sequence[str], commit_s: float) -> None: ...

    def ledger_failed(self) -> None: ...

    def ledger_pending(self, num_rows: int, *, is_up: bool) -> None: ...

    def ledger_journaled(self, num_rows: int) -> None: ...


@dataclass(slots=True)
class _Entry:
    row: LedgerRow
    kept: asyncio.Future[None] | None  # None: nothing waits for it
    is_journaled: bool = False


class LedgerWriter:
    """`start` it on the event loop, `close` it before the process ends."""

    def __init__(self, connection: Connection, metrics: LedgerMetrics, journal: Journal | None = None) -> None:
        """`journal`: None where nothing is kept when the process ends."""
        self._connection = connection
        self._metrics = metrics
        self._journal = journal
        self._entries: queue.SimpleQueue[_Entry | None] = queue.SimpleQueue()
        self._pending: dict[str, _Entry] = {}  # by request id, oldest first
        self._thread = threading.Thread(target=self._run, name="ledger", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._must_end = threading.Event()
        self._has_ended = asyncio.Event()
        self._has_ended.set()
        self._is_closed = False
        self.failure = ""  # why the last transaction failed; empty: it did not

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._has_ended.clear()
        self._thread.start()

    @property
    def num_pending(self) -> int:
        """Rows handed over and not known to be kept."""
        return len(self._pending)

    @property
    def oldest_pending_ms(self) -> int | None:
        """When the request of the oldest such row ended."""
        return min((entry.row.ended_at_ms for entry in self._pending.values()), default=None)

    def put(self, row: LedgerRow) -> None:
        """Hand over a row; nothing waits for it. A row with the same request id replaces an earlier one."""
        self._hand_over(_Entry(row, None))

    def put_and_tell(self, row: LedgerRow) -> asyncio.Future[None]:
        """Hand over a row; the future is done once it is kept, in the database or the journal. Cancelling it only ends
        the waiting; it fails with JournalError when neither took the row and nothing more will be tried."""
        assert self._loop is not None, "started"
        kept = self._loop.create_future()
        self._hand_over(_Entry(row, kept))
        return kept

    async def spill(self, *, gives_up: bool = False) -> None:
        """Keep what waits in the journal, however long the database takes. `gives_up`: what the journal does not take
        has failed for those who wait."""
        entries = [entry for entry in self._pending.values() if not entry.is_journaled]
        if not entries:
            return
        spilled = asyncio.get_running_loop().create_future()

        def run() -> None:
            failure = self._append_to_journal(entries)
            self._report(_set_unless_done, spilled, failure)

        threading.Thread(target=run, name="journal", daemon=True).start()  # a disk that hangs holds up only this
        failure = await spilled
        await asyncio.sleep(0)
        for entry in entries if failure and gives_up else ():
            if entry.kept is not None and not entry.kept.done():
                entry.kept.set_exception(JournalError(failure))

    async def close(self, deadline_s: float) -> None:
        """Write what waits, then end the thread. What the database does not take in time goes to the journal."""
        if self._is_closed:
            return
        self._entries.put(None)
        await self._thread_ends(deadline_s)
        self._must_end.set()
        await self._thread_ends(STUCK_S)
        await asyncio.sleep(0)  # what the thread has reported comes first
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(JOURNAL_S):
                await self.spill()
        self._is_closed = True
        lost = set() if self._journal is None else self._journal.close(self._pending)
        for request_id, entry in self._pending.items():
            if not entry.is_journaled or request_id in lost:
                _log_lost(entry.row)

    @property
    def is_stuck(self) -> bool:
        """After `close`: a transaction is still under way, and its connection not free."""
        return not self._has_ended.is_set()

    async def _thread_ends(self, deadline_s: float) -> None:
        """Or the time is over."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(deadline_s):
                await self._has_ended.wait()

    def _hand_over(self, entry: _Entry) -> None:
        if self._is_closed:
            if self._append_to_journal([entry]):
                _log_lost(entry.row)
            return
        self._pending.pop(entry.row.request_id, None)
        self._pending[entry.row.request_id] = entry
        self._entries.put(entry)
        self._metrics.ledger_pending(len(self._pending), is_up=not self.failure)

    def _append_to_journal(self, entries: Sequence[_Entry]) -> str:
        """On any thread. Why they are not there; empty if they are."""
        if self._journal is None:
            return "there is no journal"
        try:
            self._journal.append([entry.row for entry in entries])
        except JournalError as error:
            return str(error)
        self._report(self._on_journaled, entries)
        return ""

    # ---- the thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._write_all()
        finally:
            self._report(self._has_ended.set)

    def _write_all(self) -> None:
        is_last = False
        while not is_last:
            batch: list[_Entry] = []
            entry = self._entries.get()
            with contextlib.suppress(queue.Empty):
                while entry is not None and len(batch) < MAX_ROWS_PER_COMMIT:
                    batch.append(entry)
                    entry = self._entries.get_nowait() if len(batch) < MAX_ROWS_PER_COMMIT else entry
            is_last = entry is None
            if batch and not self._write_until_kept(batch):
                return

    def _write_until_kept(self, batch: list[_Entry]) -> bool:
        """False: the process ends and the rows are not written."""
        statements = [put_rows(entry.row for entry in batch)]
        num_failures = 0
        while True:
            began_s = time.perf_counter()
            try:
                self._connection.write(statements)
            except DatabaseError as error:
                self._report(self._on_failure, str(error))
                if not num_failures:
                    self._append_to_journal(batch)
                delay_s = _RETRY_S[min(num_failures, len(_RETRY_S) - 1)]
                num_failures += 1
                if self._must_end.wait(delay_s):
                    return False
            else:
                self._report(self._on_kept, batch, time.perf_counter() - began_s)
                if self._journal is not None:
                    self._journal.kept(entry.row.request_id for entry in batch)
                return True

    def _report(self, what: object, *arguments: object) -> None:
        assert self._loop is not None, "started"
        with contextlib.suppress(RuntimeError):  # the loop is closed: nothing waits any more
            self._loop.call_soon_threadsafe(what, *arguments)  # type: ignore[arg-type]  # bound methods below

    # ---- back on the event loop --------------------------------------------------------------------------------------

    def _on_failure(self, reason: str) -> None:
        if not self.failure:
            log.error("the usage ledger cannot be written, no request is taken until it can: %s", reason)
        self.failure = reason
        self._metrics.ledger_failed()
        self._metrics.ledger_pending(len(self._pending), is_up=False)

    def _on_kept(self, batch: list[_Entry], commit_s: float) -> None:
        if self.failure:
            log.warning("the usage ledger can be written again")
        self.failure = ""
        for entry in batch:
            if self._pending.get(entry.row.request_id) is entry:
                del self._pending[entry.row.request_id]
            _set_unless_done(entry.kept, None)
        self._metrics.ledger_kept([entry.row.outcome for entry in batch], commit_s)
        self._metrics.ledger_pending(len(self._pending), is_up=True)

    def _on_journaled(self, entries: Sequence[_Entry]) -> None:
        for entry in entries:
            entry.is_journaled = True
            _set_unless_done(entry.kept, None)
        self._metrics.ledger_journaled(len(entries))


def _set_unless_done(future: asyncio.Future[T] | None, value: T) -> None:
    if future is not None and not future.done():
        future.set_result(value)


def _log_lost(row: LedgerRow) -> None:
    log.error("a ledger row was not written: %s", json.dumps(asdict(row)))
