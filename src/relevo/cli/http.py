"""One HTTP request of a command, without an event loop. What is on this machine is never asked for through a proxy."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

_TIMEOUT_S = 10.0
_TCP_TABLES = ("/proc/net/tcp", "/proc/net/tcp6")
_ADDRESS, _STATE, _USER = 1, 3, 7  # columns there
_LISTENING = "0A"


def is_loopback(url: str) -> bool:
    """Whether it can reach this machine only, however it is written. A name that has to be looked up may not."""
    host = (urlsplit(url).hostname or "").rstrip(".")
    try:
        address = ipaddress.ip_address(_dotted(host))
    except ValueError:
        return host == "localhost"
    address = getattr(address, "ipv4_mapped", None) or address
    return address.is_loopback or address.is_unspecified


def _dotted(host: str) -> str:
    """`127.1` and `2130706433` are addresses to those who connect."""
    try:
        return socket.inet_ntoa(socket.inet_aton(host))
    except OSError:
        return host


def is_own_listener(url: str, tables: Sequence[str] = _TCP_TABLES) -> bool:
    """Whether what listens on that port of this machine is this user's or root's. No, where the kernel does not say."""
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    users = set()
    for table in tables:
        with contextlib.suppress(OSError):
            for line in Path(table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[_STATE] == _LISTENING and int(fields[_ADDRESS].rpartition(":")[2], 16) == port:
                    users.add(int(fields[_USER]))
    return bool(users) and users <= {0, os.geteuid()}


def fetch(
    url: str, *, method: str = "GET", headers: Mapping[str, str] | None = None, data: bytes | None = None
) -> tuple[int, bytes]:
    """Status and body, of errors too. HTTP_PROXY and NO_PROXY count for other machines. Raises OSError, ValueError."""
    request = urllib.request.Request(url, data, dict(headers or {}), method=method)
    handlers = [urllib.request.ProxyHandler({})] if is_loopback(url) else []
    try:
        with urllib.request.build_opener(*handlers).open(request, timeout=_TIMEOUT_S) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()
