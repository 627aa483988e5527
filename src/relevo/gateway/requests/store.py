"""Reports of ended requests in the database of metering, so that they outlive their gateway and others have them.

Best effort, and never in the way of an answer: a thread makes reports and writes what has gathered, at most so many
wait, and what the database does not take is told in the log and left. The newest are kept, a fixed number of all
tenants.
No text of a request is in a report (`requests.report`).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import queue
import threading
import uuid
from collections.abc import Callable
from typing import Any, Protocol

from relevo.core.errors import LedgerUnavailable
from relevo.gateway.metering.database import Connection, DatabaseError, Parameters
from relevo.gateway.requests.kept import KeptRequest
from relevo.telemetry.limited_log import LimitedLog

log = logging.getLogger("relevo.gateway.requests")

MAX_WAITING = 4_096  # arbitrary: some MB
MAX_PER_COMMIT = 256  # arbitrary
CLEAN_EVERY = 1_024  # arbitrary: so many more than may be kept are there at most, per gateway
ANSWER_S = 5.0  # for the database to answer a question; arbitrary

_COLUMNS = ("report_id", "tenant", "x_request_id", "response_id", "engine_request_id", "ended_at_ms", "body")
_KEEP = (
    f"INSERT INTO request_reports ({', '.join(_COLUMNS)}) VALUES ({', '.join(f':{name}' for name in _COLUMNS)}) "
    "ON CONFLICT (report_id) DO NOTHING"
)
_NAMED = "(x_request_id = :name OR response_id = :name OR engine_request_id = :name)"
_FIND = f"SELECT body FROM request_reports WHERE {_NAMED} AND tenant = :tenant ORDER BY ended_at_ms DESC LIMIT 1"
_FIND_ANYONES = (
    f"SELECT body FROM request_reports WHERE {_NAMED} "
    "ORDER BY CASE WHEN tenant = :tenant THEN 0 ELSE 1 END, ended_at_ms DESC LIMIT 1"
)
_CLEAN = (
    "DELETE FROM request_reports WHERE ended_at_ms < "
    "(SELECT ended_at_ms FROM request_reports ORDER BY ended_at_ms DESC LIMIT 1 OFFSET :num_before)"
)


class ReportStore(Protocol):
    @property
    def max_reports(self) -> int:
        """0: none is kept."""
        ...

    async def find(self, name: str, tenant: str, *, is_admin: bool) -> dict[str, Any] | None:
        """The newest of that tenant that is called so; for an admin who has none, of another tenant. Raises
        LedgerUnavailable."""
        ...


class NoReports:
    max_reports = 0

    async def find(self, name: str, tenant: str, *, is_admin: bool) -> dict[str, Any] | None:
        return None


class DatabaseReports:
    """Both connections are this object's alone. `keep` from any thread; `close` once, after the last of them."""

    def __init__(
        self,
        writing: Connection,
        reading: Connection,
        max_reports: int,
        report: Callable[[KeptRequest], dict[str, Any]],
    ) -> None:
        self.max_reports = max_reports
        self._writing, self._reading, self._report = writing, reading, report
        self._waiting: queue.Queue[KeptRequest | None] = queue.Queue(MAX_WAITING)
        self._limited_log = LimitedLog(log)
        self._num_until_clean = 0
        self._thread = threading.Thread(target=self._run, name="request reports", daemon=True)
        self._thread.start()

    def keep(self, kept: KeptRequest) -> None:
        """Does not wait."""
        try:
            self._waiting.put_nowait(kept)
        except queue.Full:
            self._limited_log.warning("full", "a request's report was not kept in the database: too many wait for it")

    async def find(self, name: str, tenant: str, *, is_admin: bool) -> dict[str, Any] | None:
        try:
            async with asyncio.timeout(ANSWER_S):
                rows = await asyncio.to_thread(
                    self._reading.read, _FIND_ANYONES if is_admin else _FIND, {"name": name, "tenant": tenant}
                )
        except (DatabaseError, TimeoutError) as error:
            self._limited_log.warning("read", f"reports of requests cannot be read: {error}")
            raise LedgerUnavailable("Kept reports cannot be read at present; try again shortly.") from None
        return json.loads(str(rows[0][0])) if rows else None

    def close(self, within_s: float) -> None:
        """What waits is written, if the database takes it within that time."""
        with contextlib.suppress(queue.Full):
            self._waiting.put(None, timeout=within_s)
        self._thread.join(within_s)

    # ---- the thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        is_last = False
        while not is_last:
            batch: list[KeptRequest] = []
            kept = self._waiting.get()
            with contextlib.suppress(queue.Empty):
                while kept is not None and len(batch) < MAX_PER_COMMIT - 1:
                    batch.append(kept)
                    kept = self._waiting.get_nowait()
            if kept is not None and len(batch) == MAX_PER_COMMIT - 1:
                batch.append(kept)
            is_last = kept is None
            self._write(batch)

    def _write(self, batch: list[KeptRequest]) -> None:
        rows = []
        for kept in batch:
            try:
                rows.append(self._row(kept))
            except Exception:
                log.exception("request %s: its report cannot be made", kept.x_request_id)
        if not rows:
            return
        try:
            self._writing.write([(_KEEP, rows)])
            self._num_until_clean -= len(rows)
            if self._num_until_clean <= 0:
                self._num_until_clean = CLEAN_EVERY
                self._writing.write([(_CLEAN, ({"num_before": self.max_reports - 1},))])
        except DatabaseError as error:
            self._limited_log.warning("write", f"{len(rows)} reports of requests were not kept: {error}")

    def _row(self, kept: KeptRequest) -> Parameters:
        return {
            "report_id": uuid.uuid4().hex,
            "tenant": kept.tenant,
            "x_request_id": kept.x_request_id,
            "response_id": kept.response_id,
            "engine_request_id": kept.prompts[0].engine_request_id if kept.prompts else "",
            "ended_at_ms": kept.arrived_at_unix_ms + round(kept.e2e_s * 1e3),
            "body": json.dumps(self._report(kept), separators=(",", ":")),
        }
