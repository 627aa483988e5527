"""Answers in this process's memory: a bounded number of bytes. Where there are too many, the tenant that has most of
them loses those that it did not ask for longest.

For a server without a database. Other gateways know nothing of them, and they are gone with the process.
"""

from __future__ import annotations

import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from relevo.gateway.answers.store import StoredAnswer

LIFETIME_S = 86_400.0
MAX_BYTES = 64 * 2**20  # arbitrary
_ENTRY_BYTES = 512  # about what an entry takes beside its text


def unix_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass(slots=True)
class _OfTenant:
    kept: OrderedDict[str, tuple[StoredAnswer, int]] = field(default_factory=OrderedDict)  # and when it ends
    num_bytes: int = 0


class MemoryAnswers:
    """`lifetime_s`: 0: nothing is kept."""

    def __init__(
        self,
        lifetime_s: float = LIFETIME_S,
        *,
        max_bytes: int = MAX_BYTES,
        now_ms: Callable[[], int] = unix_ms,
    ) -> None:
        self._lifetime_ms = int(lifetime_s * 1000)
        self._max_bytes = max_bytes
        self._now_ms = now_ms
        self._tenants: dict[str, _OfTenant] = {}  # that have any
        self.num_bytes = 0

    @property
    def keeps(self) -> bool:
        return self._lifetime_ms > 0

    async def keep(self, answer: StoredAnswer) -> None:
        for earlier in reversed(self._chain(answer.tenant, answer.previous_id)):
            self._touch(earlier)
        self._touch(answer)
        while self._tenants and self.num_bytes > self._max_bytes:
            tenant, most = max(self._tenants.items(), key=lambda each: each[1].num_bytes)
            self._drop(tenant, next(iter(most.kept)))

    async def chain(self, tenant: str, answer_id: str) -> Sequence[StoredAnswer]:
        found = self._chain(tenant, answer_id)
        for answer in found:
            self._tenants[tenant].kept.move_to_end(answer.answer_id)
        return found[::-1]

    async def find(self, tenant: str, answer_id: str) -> StoredAnswer | None:
        return next(iter(self._chain(tenant, answer_id, most=1)), None)

    async def forget(self, tenant: str, answer_id: str) -> bool:
        is_there = await self.find(tenant, answer_id) is not None
        if is_there:
            self._drop(tenant, answer_id)
        return is_there

    def _chain(self, tenant: str, answer_id: str, most: int | None = None) -> list[StoredAnswer]:
        """Newest first."""
        found: list[StoredAnswer] = []
        while answer_id and (most is None or len(found) < most):
            of_tenant = self._tenants.get(tenant)
            kept = None if of_tenant is None else of_tenant.kept.get(answer_id)
            if kept is None:
                break
            answer, ends_at_ms = kept
            if ends_at_ms <= self._now_ms():
                self._drop(tenant, answer_id)
                break
            found.append(answer)
            answer_id = answer.previous_id
        return found

    def _touch(self, answer: StoredAnswer) -> None:
        """It lives anew, as the one that was asked for last."""
        earlier = self._tenants.get(answer.tenant)
        if earlier is not None and answer.answer_id in earlier.kept:
            self._drop(answer.tenant, answer.answer_id)
        if self._lifetime_ms:
            of_tenant = self._tenants.setdefault(answer.tenant, _OfTenant())
            of_tenant.kept[answer.answer_id] = (answer, self._now_ms() + self._lifetime_ms)
            of_tenant.num_bytes += _size(answer)
            self.num_bytes += _size(answer)

    def _drop(self, tenant: str, answer_id: str) -> None:
        of_tenant = self._tenants[tenant]
        size = _size(of_tenant.kept.pop(answer_id)[0])
        of_tenant.num_bytes -= size
        self.num_bytes -= size
        if not of_tenant.kept:
            del self._tenants[tenant]


def _size(answer: StoredAnswer) -> int:
    return _ENTRY_BYTES + sys.getsizeof(answer.asked) + sys.getsizeof(answer.body)
