"""Answers in the database of metering, so that every gateway over it has them and they outlive a start.

Statements run on threads of their own, never on the event loop and never in the way of the ledger's. What has ended is
removed beside a write now and then.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, fields
from typing import TypeVar

from relevo.core.errors import InvalidRequest, LedgerUnavailable
from relevo.gateway.answers.memory import LIFETIME_S, unix_ms
from relevo.gateway.answers.store import StoredAnswer
from relevo.gateway.metering.database import Connection, DatabaseError, Parameters, Row, Statement, Value

T = TypeVar("T")
log = logging.getLogger("relevo.gateway.answers")

ANSWER_S = 10.0  # for the database to answer; arbitrary, far above any healthy disk
MAX_CHARS = 4 * 2**30  # arbitrary; of all tenants: the ledger needs the disk more
MAX_CHAIN_CHARS = 64 * 2**20  # arbitrary; far above what a context holds
NUM_THREADS = 2  # arbitrary: one may wait for a commit
CLEAN_EVERY_MS = 60_000  # arbitrary
_UNAVAILABLE = "Stored responses cannot be read or written at present; send 'store': false, or try again shortly."

_COLUMNS = tuple(field.name for field in fields(StoredAnswer))
_KEEP = (
    f"INSERT INTO kept_answers ({', '.join(_COLUMNS)}, expires_at_ms, num_chars) "
    f"VALUES ({', '.join(f':{name}' for name in _COLUMNS)}, :expires_at_ms, :num_chars)"
)
_CHAIN_IDS = (
    "WITH RECURSIVE chain (answer_id, previous_id, num_chars, place) AS ("
    "SELECT answer_id, previous_id, num_chars, 0 FROM kept_answers "
    "WHERE answer_id = :answer_id AND tenant = :tenant AND expires_at_ms > :now_ms "
    "UNION ALL "
    "SELECT a.answer_id, a.previous_id, a.num_chars, chain.place + 1 FROM kept_answers a "
    "JOIN chain ON a.answer_id = chain.previous_id WHERE a.tenant = :tenant AND a.expires_at_ms > :now_ms) "
    "SELECT answer_id, num_chars FROM chain ORDER BY place DESC"
)
_FIND = (
    f"SELECT {', '.join(_COLUMNS)} FROM kept_answers "
    "WHERE answer_id = :answer_id AND tenant = :tenant AND expires_at_ms > :now_ms"
)
_PROLONG = "UPDATE kept_answers SET expires_at_ms = :expires_at_ms WHERE answer_id = :answer_id AND tenant = :tenant"
_FORGET = "DELETE FROM kept_answers WHERE answer_id = :answer_id AND tenant = :tenant"
_CLEAN = "DELETE FROM kept_answers WHERE expires_at_ms <= :now_ms"
_SIZE = "SELECT CAST(COALESCE(SUM(num_chars), 0) AS BIGINT) FROM kept_answers"
# of the tenant that has most
_NEXT_TO_END = (
    "SELECT answer_id, num_chars FROM kept_answers WHERE tenant = "
    "(SELECT tenant FROM kept_answers GROUP BY tenant ORDER BY SUM(num_chars) DESC, tenant LIMIT 1) "
    "ORDER BY expires_at_ms, num_chars LIMIT 500"
)
_REMOVE = "DELETE FROM kept_answers WHERE answer_id = :answer_id"


class DatabaseAnswers:
    """For one event loop. `connection`: this object's alone, to a database that has its tables."""

    def __init__(
        self,
        connection: Connection,
        lifetime_s: float = LIFETIME_S,
        *,
        now_ms: Callable[[], int] = unix_ms,
        answer_s: float = ANSWER_S,
        max_chars: int = MAX_CHARS,
    ) -> None:
        self._connection = connection
        self._lifetime_ms = int(lifetime_s * 1000)
        self._now_ms = now_ms
        self._answer_s, self._max_chars = answer_s, max_chars
        self._threads = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="answers")  # started when needed
        self._clean_at_ms = 0

    @property
    def keeps(self) -> bool:
        return self._lifetime_ms > 0

    async def keep(self, answer: StoredAnswer) -> None:
        await self._run(lambda: self._keep(answer))

    async def chain(self, tenant: str, answer_id: str) -> Sequence[StoredAnswer]:
        return await self._run(lambda: self._chain(tenant, answer_id))

    async def find(self, tenant: str, answer_id: str) -> StoredAnswer | None:
        return await self._run(lambda: self._find(tenant, answer_id))

    async def forget(self, tenant: str, answer_id: str) -> bool:
        return await self._run(lambda: self._forget(tenant, answer_id))

    async def _run(self, work: Callable[[], T]) -> T:
        """Raises LedgerUnavailable. What was not begun in time is not done any more."""
        try:
            async with asyncio.timeout(self._answer_s):
                return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        except (DatabaseError, TimeoutError) as error:
            log.error("stored responses: %s", error or f"the database has not answered for {self._answer_s:g} s")
            raise LedgerUnavailable(_UNAVAILABLE) from None

    # ---- on a thread -------------------------------------------------------------------------------------------------

    def _keep(self, answer: StoredAnswer) -> None:
        if not self.keeps:
            return
        now_ms = self._now_ms()
        expires_at_ms = now_ms + self._lifetime_ms
        before = [answer_id for answer_id, _ in self._chain_ids(answer.tenant, answer.previous_id)]
        statements: list[Statement] = [
            (
                _KEEP,
                (
                    {
                        **asdict(answer),
                        "expires_at_ms": expires_at_ms,
                        "num_chars": len(answer.asked) + len(answer.body),
                    },
                ),
            )
        ]
        if before:
            prolonged: list[Parameters] = [
                {"answer_id": answer_id, "tenant": answer.tenant, "expires_at_ms": expires_at_ms}
                for answer_id in before
            ]
            statements.append((_PROLONG, prolonged))
        self._connection.write(statements)
        if now_ms >= self._clean_at_ms:
            self._clean_at_ms = now_ms + CLEAN_EVERY_MS
            self._clean(now_ms)

    def _clean(self, now_ms: int) -> None:
        """What has ended goes; of too much, what would end next of the tenant that has most."""
        self._connection.write([(_CLEAN, ({"now_ms": now_ms},))])
        num_over = _integer(self._connection.read(_SIZE)[0][0]) - self._max_chars
        while num_over > 0:
            removed: list[Parameters] = []
            for answer_id, num_chars in self._connection.read(_NEXT_TO_END):
                if num_over > 0:
                    num_over -= max(1, _integer(num_chars))
                    removed.append({"answer_id": answer_id})
            if not removed:
                return
            self._connection.write([(_REMOVE, removed)])

    def _chain(self, tenant: str, answer_id: str) -> list[StoredAnswer]:
        ids = self._chain_ids(tenant, answer_id)
        num_chars = sum(num_chars for _, num_chars in ids)
        if num_chars > MAX_CHAIN_CHARS:
            raise InvalidRequest(
                f"The conversation before has {num_chars} characters, and at most {MAX_CHAIN_CHARS} are read; send "
                "what matters of it as 'input'.",
                param="previous_response_id",
            )
        found = (self._find(tenant, each) for each, _ in ids)
        return [answer for answer in found if answer is not None]

    def _chain_ids(self, tenant: str, answer_id: str) -> list[tuple[str, int]]:
        """Oldest first, with how much text each is."""
        if not answer_id:
            return []
        rows = self._connection.read(_CHAIN_IDS, self._named(tenant, answer_id))
        return [(str(found), _integer(num_chars)) for found, num_chars in rows]

    def _find(self, tenant: str, answer_id: str) -> StoredAnswer | None:
        rows: list[Row] = self._connection.read(_FIND, self._named(tenant, answer_id))
        return StoredAnswer(**dict(zip(_COLUMNS, map(str, rows[0]), strict=True))) if rows else None

    def _forget(self, tenant: str, answer_id: str) -> bool:
        is_there = self._find(tenant, answer_id) is not None
        if is_there:
            self._connection.write([(_FORGET, ({"answer_id": answer_id, "tenant": tenant},))])
        return is_there

    def _named(self, tenant: str, answer_id: str) -> Parameters:
        return {"answer_id": answer_id, "tenant": tenant, "now_ms": self._now_ms()}


def _integer(value: Value) -> int:
    assert isinstance(value, int), "counts are integers"
    return value
