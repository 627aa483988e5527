"""Sockets between machines: how one is made, and how soon a peer that has gone without a word is noticed.

Names are looked up at each attempt. Every address that one has is tried, one after the other, each for a short while.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterable

from relevo.core.errors import StartError
from relevo.core.host_port import HostPort

SILENT_S = 5  # whole seconds; a peer that acknowledges nothing for as long is gone, as membership counts it
_PROBE_AFTER_S, _PROBE_EVERY_S = 2, 1
LOOK_UP_TIMEOUT_S = 3.0  # arbitrary
BACKLOG = 1024  # arbitrary; a flood waits in the kernel


async def addresses_of(place: HostPort) -> list[tuple[socket.AddressFamily, tuple[str | int, ...]]]:
    """Where it is at this moment, IPv6 and IPv4 in turn. OSError if the name is not known."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(LOOK_UP_TIMEOUT_S):
        try:
            found = await loop.getaddrinfo(place.host, place.port, type=socket.SOCK_STREAM)
        except socket.gaierror as error:
            raise OSError(error.errno, f"{place.host} is not known ({error.strerror})") from error
    by_family: dict[int, list[tuple[socket.AddressFamily, tuple[str | int, ...]]]] = {}
    for family, _, _, _, address in found:
        entries = by_family.setdefault(family, [])
        entry = (socket.AddressFamily(family), _words(address))
        if family in (socket.AF_INET, socket.AF_INET6) and entry not in entries:
            entries.append(entry)
    longest = max((len(entries) for entries in by_family.values()), default=0)
    return [entries[at] for at in range(longest) for entries in by_family.values() if at < len(entries)]


def _words(address: Iterable[object]) -> tuple[str | int, ...]:
    return tuple(part for part in address if isinstance(part, str | int))


async def connected_socket(
    family: socket.AddressFamily, address: tuple[str | int, ...], timeout_s: float
) -> socket.socket:
    """OSError, TimeoutError included."""
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        watch_silence(sock)
        async with asyncio.timeout(timeout_s):
            await asyncio.get_running_loop().sock_connect(sock, address)
    except BaseException:
        sock.close()
        raise
    return sock


def watch_silence(sock: socket.socket) -> None:
    """The kernel ends it once the peer has been silent for `SILENT_S`, whether or not something was sent."""
    options: list[tuple[int, int, int]] = [
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
        (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    ]
    for name, value in (
        ("TCP_KEEPIDLE", _PROBE_AFTER_S),
        ("TCP_KEEPINTVL", _PROBE_EVERY_S),
        ("TCP_KEEPCNT", (SILENT_S - _PROBE_AFTER_S) // _PROBE_EVERY_S),
        ("TCP_USER_TIMEOUT", SILENT_S * 1000),
    ):
        option = getattr(socket, name, None)  # not on every system
        if option is not None:
            options.append((socket.IPPROTO_TCP, option, value))
    for level, option, value in options:
        sock.setsockopt(level, option, value)


def listening_sockets(place: HostPort) -> list[socket.socket]:
    """One per address of the name. Port 0: a free one, the same for all. Raises StartError."""
    try:
        found = socket.getaddrinfo(place.host, place.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise StartError(f"cannot listen at {place}: the name is not known ({error}); give an address") from error
    made: list[socket.socket] = []
    try:
        for family, address in dict.fromkeys((entry[0], _words(entry[4])) for entry in found):
            port = made[0].getsockname()[1] if made else place.port
            made.append(_listening(family, (address[0], port, *address[2:]), is_dual=place.host == "::"))
    except OSError as error:
        close_all(made)
        raise StartError(f"cannot listen at {place}: {error.strerror}; choose another address or port") from error
    return made


def close_all(sockets: Iterable[socket.socket]) -> None:
    for sock in sockets:
        sock.close()


def _listening(family: int, address: tuple[str | int, ...], *, is_dual: bool) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            with contextlib.suppress(OSError):  # a kernel that decides for itself
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0 if is_dual else 1)
        sock.bind(address)
        sock.listen(BACKLOG)
        sock.setblocking(False)
    except OSError:
        sock.close()
        raise
    return sock
