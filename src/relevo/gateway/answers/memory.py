"""Answers in this process's memory: a bounded number of bytes, those that were not asked for longest go first.

For a server without a database. Other gateways know nothing of them, and they are gone with the process.
"""

from __future__ import annotations

import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence

from relevo.gateway.answers.store import StoredAnswer

LIFETIME_S = 86_400.0
MAX_BYTES = 64 * 2**20  # arbitrary
_ENTRY_BYTES = 512  # about what an entry takes beside its text


def unix_ms() -> int:
    return time.time_ns() // 1_000_000


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
        self._kept: OrderedDict[tuple[str, str], tuple[StoredAnswer, int]] = OrderedDict()  # and when it ends
        self.num_bytes = 0

    @property
    def keeps(self) -> bool:
        return self._lifetime_ms > 0

    async def keep(self, answer: StoredAnswer) -> None:
        for earlier in reversed(self._chain(answer.tenant, answer.previous_id)):
            self._touch(earlier)
        self._touch(answer)
        while self._kept and self.num_bytes > self._max_bytes:
            self._drop(next(iter(self._kept)))

    async def chain(self, tenant: str, answer_id: str) -> Sequence[StoredAnswer]:
        found = self._chain(tenant, answer_id)
        for answer in found:
            self._kept.move_to_end((tenant, answer.answer_id))
        return found[::-1]

    async def find(self, tenant: str, answer_id: str) -> StoredAnswer | None:
        return next(iter(self._chain(tenant, answer_id, most=1)), None)

    async def forget(self, tenant: str, answer_id: str) -> bool:
        is_there = await self.find(tenant, answer_id) is not None
        if is_there:
            self._drop((tenant, answer_id))
        return is_there

    def _chain(self, tenant: str, answer_id: str, most: int | None = None) -> list[StoredAnswer]:
        """Newest first."""
        found: list[StoredAnswer] = []
        while answer_id and (most is None or len(found) < most):
            kept = self._kept.get((tenant, answer_id))
            if kept is None:
                break
            answer, ends_at_ms = kept
            if ends_at_ms <= self._now_ms():
                self._drop((tenant, answer_id))
                break
            found.append(answer)
            answer_id = answer.previous_id
        return found

    def _touch(self, answer: StoredAnswer) -> None:
        """It lives anew, as the one that was asked for last."""
        key = (answer.tenant, answer.answer_id)
        if key in self._kept:
            self._drop(key)
        if self._lifetime_ms:
            self._kept[key] = (answer, self._now_ms() + self._lifetime_ms)
            self.num_bytes += _size(answer)

    def _drop(self, key: tuple[str, str]) -> None:
        answer, _ = self._kept.pop(key)
        self.num_bytes -= _size(answer)


def _size(answer: StoredAnswer) -> int:
    return _ENTRY_BYTES + sys.getsizeof(answer.asked) + sys.getsizeof(answer.body)
