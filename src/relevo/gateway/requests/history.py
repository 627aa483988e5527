"""The requests of this gateway: those that run, and a bounded ring of those that ended lately.

Owns how many are kept, and which is found by which name. A client chooses its x-request-id, so a name means something
within its tenant only, and there the newest request. Does not know HTTP, nor why a request was slow.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from heapq import nlargest
from operator import attrgetter, itemgetter
from typing import Any

from relevo.gateway.requests.kept import KeptRequest, LiveRequest

MAX_REQUESTS = 10_000
BYTES_PER_REQUEST = 8_192  # arbitrary: four times what one of one prompt takes


class SlowBy(StrEnum):
    """What a request can be slow by."""

    TTFT = "ttft"
    E2E = "e2e"
    GAP = "gap"


_SLOW_S: dict[SlowBy, Callable[[KeptRequest], Any]] = {
    SlowBy.TTFT: attrgetter("ttft_s"),
    SlowBy.E2E: attrgetter("e2e_s"),
    SlowBy.GAP: attrgetter("gap_s"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFilter:
    """None: of all."""

    tenant: str | None
    models: frozenset[str] | None = None  # names that the client may have used
    since_unix_ms: int | None = None  # ended by then, or running


@dataclass(slots=True)
class RequestHistory:
    max_requests: int = MAX_REQUESTS
    max_bytes: int = MAX_REQUESTS * BYTES_PER_REQUEST
    on_kept: Callable[[KeptRequest], None] = lambda kept: None
    num_bytes: int = 0
    _live: dict[int, LiveRequest] = field(default_factory=dict)  # by the object's id
    _ended: deque[KeptRequest] = field(default_factory=deque)  # oldest first
    _named: dict[str, dict[str, LiveRequest | KeptRequest]] = field(default_factory=dict)  # by tenant, by any name

    def open(self, live: LiveRequest) -> None:
        self._live[id(live)] = live
        self._name(live, live.ids)

    def close(self, live: LiveRequest, status: int, now_ns: int) -> None:
        """It has ended; `status` is what its client was answered. Once."""
        del self._live[id(live)]
        kept = live.as_kept(status, now_ns)
        names = [name for name in live.ids if self._unname(live, name)]  # not those that a newer one has
        if self.max_requests:
            self._ended.append(kept)
            self.num_bytes += kept.num_bytes
            self._name(kept, names)
            while len(self._ended) > self.max_requests or self.num_bytes > self.max_bytes:
                self._forget_oldest()
        self.on_kept(kept)

    def began(self, live: LiveRequest) -> None:
        """It has more names now."""
        self._name(live, live.ids[1:])

    def find(self, name: str, tenant: str, now_ns: int, *, is_admin: bool = False) -> KeptRequest | None:
        """The newest of that tenant that is called so; for an admin who has none, one of another tenant."""
        for each in (tenant, *self._named) if is_admin else (tenant,):
            found = self._named.get(each, {}).get(name)
            if found is not None:
                return found if isinstance(found, KeptRequest) else found.as_kept(None, now_ns)
        return None

    def slowest(self, by: SlowBy, num_most: int, where: RequestFilter, now_ns: int) -> list[KeptRequest]:
        """Slowest first; running ones as slow as they are by now."""
        slow_s, tenant, models = _SLOW_S[by], where.tenant, where.models
        every: Iterable[KeptRequest] = self._ended
        if tenant is not None:
            every = [kept for kept in every if kept.tenant == tenant]
        if models is not None:
            every = [kept for kept in every if kept.model in models]
        if where.since_unix_ms is not None:
            since_ms = where.since_unix_ms
            every = [kept for kept in every if kept.arrived_at_unix_ms + kept.e2e_s * 1e3 >= since_ms]
        every = [kept for kept in every if slow_s(kept) is not None]
        slowest = nlargest(num_most, every, key=slow_s)
        times: list[tuple[float, KeptRequest | LiveRequest]] = [(slow_s(kept) or 0.0, kept) for kept in slowest]
        for live in self._live.values():
            live_s = _so_far_s(live, by, now_ns)
            if live_s is not None and tenant in (None, live.tenant) and (models is None or live.model in models):
                times.append((live_s, live))
        times.sort(key=itemgetter(0), reverse=True)
        return [each if isinstance(each, KeptRequest) else each.as_kept(None, now_ns) for _, each in times[:num_most]]

    @property
    def num_ended(self) -> int:
        return len(self._ended)

    @property
    def num_live(self) -> int:
        return len(self._live)

    def _forget_oldest(self) -> None:
        oldest = self._ended.popleft()
        self.num_bytes -= oldest.num_bytes
        for name in oldest.ids:
            self._unname(oldest, name)

    def _name(self, one: LiveRequest | KeptRequest, names: Iterable[str]) -> None:
        of_tenant = self._named.setdefault(one.tenant, {})
        for name in names:
            if name:
                of_tenant[name] = one

    def _unname(self, one: LiveRequest | KeptRequest, name: str) -> bool:
        """False: that is another's name."""
        of_tenant = self._named.get(one.tenant)
        if of_tenant is None or of_tenant.get(name) is not one:
            return False
        del of_tenant[name]
        if not of_tenant:
            del self._named[one.tenant]
        return True


def _so_far_s(live: LiveRequest, by: SlowBy, now_ns: int) -> float | None:
    timelines = [run.timeline for run in live.runs]
    if by is SlowBy.GAP:
        return max([each.worst_gap.gap_s for each in timelines if each.worst_gap is not None], default=None)
    if by is SlowBy.TTFT:
        first = [each.first_written_at_ns for each in timelines if each.first_written_at_ns is not None]
        now_ns = min(first, default=now_ns)
    return (now_ns - live.accepted_at_ns) / 1e9
