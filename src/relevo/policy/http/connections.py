"""Which connections a server keeps: how many, of whom, and how long each may keep it waiting.

Owns the counts per address, the deadlines and the choice of what is given up. Pure: `now_ns` comes in, keys of
connections are opaque, what is to be closed comes out. Does not know sockets, HTTP or what a request is.

Every time limit is the same for all connections that wait for the same thing, so each kind of wait is a queue in the
order of its deadlines, and looking for what is late costs what is late.
"""

from __future__ import annotations

import ipaddress
import itertools
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

MIN_BYTES_PER_S = 240  # arbitrary: a telegraph is slower, and no network that carries a chat is
LINGER_S = 5.0  # arbitrary: what a client may still send after its last answer
NUM_LOOKED_AT = 256  # arbitrary: of the longest idle, for one of the same address
NUM_RESERVED = 64  # arbitrary: connections above the bound, for what asks after the server's health


class Wait(StrEnum):
    """What a client owes. The values are labels of a metric."""

    HEAD = "headers"  # of a first request, its TLS handshake included, or of one that has begun
    NEXT = "keep_alive"  # nothing: the connection is kept for a next request
    BODY = "slow_body"
    READER = "slow_reader"  # the answer that waits for it
    LEAVE = "linger"  # its answer is complete and the connection is to end


class Refusal(StrEnum):
    """Why a connection is not kept. The values are labels of a metric."""

    FULL = "full"
    ADDRESS = "per_address"
    DESCRIPTORS = "descriptors"


class Verdict(StrEnum):
    KEEP = "keep"
    RESERVE = "reserve"  # kept, for questions about the server's health only


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    max_connections: int
    max_per_address: int
    header_timeout_s: float = 20.0
    keep_alive_timeout_s: float = 75.0
    stall_timeout_s: float = 30.0
    trusted: tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...] = ()  # not bounded per address

    def wait_s(self, wait: Wait) -> float:
        match wait:
            case Wait.HEAD:
                return self.header_timeout_s
            case Wait.NEXT:
                return self.keep_alive_timeout_s
            case Wait.LEAVE:
                return LINGER_S
        return self.stall_timeout_s


@dataclass(slots=True)
class _Owed:
    deadline_ns: int
    num_bytes: int  # what had moved when the wait began


@dataclass(slots=True)
class ConnectionTable(Generic[K]):
    """`moved(connection, wait)`: how many bytes of a body or an answer have moved so far; it only grows."""

    limits: ConnectionLimits
    moved: Callable[[K, Wait], int]
    _groups: dict[K, str] = field(default_factory=dict)  # of every open connection
    _num_per_group: dict[str, int] = field(default_factory=dict)
    _owed: dict[Wait, dict[K, _Owed]] = field(default_factory=lambda: {wait: {} for wait in Wait})

    def __len__(self) -> int:
        return len(self._groups)

    def admit(self, connection: K, address: str) -> tuple[Verdict | Refusal, K | None]:
        """Whether a new connection is kept, and which one is given up for it. A refused one is not remembered."""
        group = self._group(address)
        verdict, given_up = Verdict.KEEP, None
        if group and self._num_per_group.get(group, 0) >= self.limits.max_per_address:
            given_up = self._longest_idle(group)
            if given_up is None:
                return Refusal.ADDRESS, None
        elif len(self) >= self.limits.max_connections:
            given_up = self._longest_idle()
            if given_up is None:
                if len(self) >= self.limits.max_connections + NUM_RESERVED:
                    return Refusal.FULL, None
                verdict = Verdict.RESERVE
        self._groups[connection] = group
        if group:
            self._num_per_group[group] = self._num_per_group.get(group, 0) + 1
        return verdict, given_up

    def close(self, connection: K) -> None:
        """Idempotent."""
        group = self._groups.pop(connection, None)
        if group:
            self._num_per_group[group] -= 1
            if not self._num_per_group[group]:
                del self._num_per_group[group]
        for queue in self._owed.values():
            queue.pop(connection, None)

    def begin(self, connection: K, wait: Wait, now_ns: int) -> None:
        """Anew if it has begun before. Nothing for a connection that is closed."""
        if connection not in self._groups:
            return
        queue = self._owed[wait]
        queue.pop(connection, None)
        deadline_ns = now_ns + int(self.limits.wait_s(wait) * 1e9)
        queue[connection] = _Owed(deadline_ns, self.moved(connection, wait) if wait in _BY_RATE else 0)

    def end(self, connection: K, wait: Wait) -> None:
        """Idempotent."""
        self._owed[wait].pop(connection, None)

    def late(self, now_ns: int) -> list[tuple[K, Wait]]:
        """Connections that have kept the server waiting too long; each is named once per wait."""
        late: list[tuple[K, Wait]] = []
        for wait, queue in self._owed.items():
            due = []
            for connection, owed in queue.items():
                if owed.deadline_ns > now_ns:
                    break
                due.append((connection, owed))
            for connection, owed in due:
                if wait in _BY_RATE and self._is_fast_enough(connection, wait, owed):
                    self.begin(connection, wait, now_ns)
                else:
                    del queue[connection]
                    late.append((connection, wait))
        return late

    def _is_fast_enough(self, connection: K, wait: Wait, owed: _Owed) -> bool:
        num_moved = self.moved(connection, wait) - owed.num_bytes
        return num_moved >= MIN_BYTES_PER_S * self.limits.wait_s(wait)

    def _longest_idle(self, group: str = "") -> K | None:
        """Of `group`, or of all; a few are looked at, so that it costs the same however many there are."""
        for wait in (Wait.LEAVE, Wait.NEXT, Wait.HEAD):
            for connection in itertools.islice(self._owed[wait], NUM_LOOKED_AT):
                if not group or self._groups[connection] == group:
                    return connection
        return None

    def _group(self, address: str) -> str:
        """Whom an address counts for: an IPv6 network of 64 bits is one. Empty: it is not bounded."""
        try:
            ip = ipaddress.ip_address(address.partition("%")[0])
        except ValueError:
            return ""  # a Unix socket has none
        if isinstance(ip, ipaddress.IPv6Address):
            ip = ip.ipv4_mapped or ip
        if any(ip in network for network in self.limits.trusted):
            return ""
        return str(ip) if ip.version == 4 else str(ipaddress.ip_network((int(ip), 64), strict=False))


_BY_RATE = frozenset((Wait.BODY, Wait.READER))


def trusted_networks(texts: Sequence[str]) -> tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]:
    """Addresses and networks in CIDR notation. Raises ValueError."""
    return tuple(ipaddress.ip_network(text, strict=False) for text in texts)
