"""The requests of this gateway: those that run, and a bounded ring of those that ended lately.

Owns how many are kept, and which is found by which name. Of too many a tenant that has its even share of the bytes
loses its own oldest: one that sends much pushes out no other's. A client chooses its x-request-id, so a name means
something within its tenant only, and there the newest request. Does not know HTTP, nor why a request was slow.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from heapq import nlargest
from itertools import chain
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
class _OfTenant:
    requests: deque[KeptRequest] = field(default_factory=deque)  # oldest first
    num_bytes: int = 0


@dataclass(slots=True)
class RequestHistory:
    max_requests: int = MAX_REQUESTS
    max_bytes: int = MAX_REQUESTS * BYTES_PER_REQUEST
    on_kept: Callable[[KeptRequest], None] = lambda kept: None
    num_bytes: int = 0
    _live: dict[int, LiveRequest] = field(default_factory=dict)  # by the object's id
    num_ended: int = 0
    _ended: dict[str, _OfTenant] = field(default_factory=dict)  # by tenant; none without one
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
            self._keep(kept, names)
            while self.num_ended > self.max_requests or self.num_bytes > self.max_bytes:
                self._forget_oldest(self._largest(kept.tenant))
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
        own = [self._ended[tenant]] if tenant in self._ended else []
        every: Iterable[KeptRequest] = chain.from_iterable(
            [each.requests for each in (self._ended.values() if tenant is None else own)]
        )
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
    def num_live(self) -> int:
        return len(self._live)

    def _keep(self, kept: KeptRequest, names: Iterable[str]) -> None:
        own = self._ended.setdefault(kept.tenant, _OfTenant())
        own.requests.append(kept)
        own.num_bytes += kept.num_bytes
        self.num_ended += 1
        self.num_bytes += kept.num_bytes
        self._name(kept, names)

    def _largest(self, tenant: str) -> str:
        """Who has to make room: the tenant whose request has ended, if it has its even share, else the largest."""
        own = self._ended.get(tenant)
        if own is not None and own.num_bytes * len(self._ended) >= self.num_bytes:
            return tenant
        return max(self._ended, key=lambda each: self._ended[each].num_bytes)

    def _forget_oldest(self, tenant: str) -> None:
        own = self._ended[tenant]
        oldest = own.requests.popleft()
        own.num_bytes -= oldest.num_bytes
        self.num_ended -= 1
        self.num_bytes -= oldest.num_bytes
        if not own.requests:
            del self._ended[tenant]
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
