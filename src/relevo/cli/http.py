"""One HTTP request of a command, without an event loop. What is on this machine is never asked for through a proxy."""

from __future__ import annotations

import contextlib
import http.client
import ipaddress
import json
import os
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

_TIMEOUT_S = 10.0  # of each read
_ANSWER_S = 20.0  # until the answer has ended; arbitrary
_MAX_BYTES = 32 << 20  # of it; arbitrary
_MAX_DIGITS = 18  # of a number in it: none of ours has more
_TCP_TABLES = ("/proc/net/tcp", "/proc/net/tcp6")
_ADDRESS, _STATE, _USER = 1, 3, 7  # columns there
_LISTENING = "0A"


class _Readable(Protocol):
    def read1(self, n: int = -1, /) -> bytes: ...


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
    """Status and body, of errors and redirections too: a key goes nowhere else. HTTP_PROXY and NO_PROXY count for other
    machines. Raises OSError, ValueError."""
    request = urllib.request.Request(url, data, dict(headers or {}), method=method)
    handlers: list[urllib.request.BaseHandler] = [_NoRedirection()]
    if is_loopback(url):
        handlers.append(urllib.request.ProxyHandler({}))
    try:
        with urllib.request.build_opener(*handlers).open(request, timeout=_TIMEOUT_S) as answer:
            return answer.status, _whole(answer)
    except urllib.error.HTTPError as error:
        return error.code, _whole(error)
    except http.client.HTTPException as error:
        raise ConnectionError(f"what answers there does not speak HTTP: {type(error).__name__}") from error


class _NoRedirection(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        """None: it is not followed."""


def _whole(answer: _Readable) -> bytes:
    body, ends_s = bytearray(), time.monotonic() + _ANSWER_S
    while piece := answer.read1(1 << 16):
        body += piece
        if len(body) > _MAX_BYTES or time.monotonic() > ends_s:
            raise ConnectionError("its answer does not end")
    return bytes(body)


def read_json(body: bytes) -> Any:
    """Raises ValueError, also for what is nested or as large as nothing that a server of ours says."""
    try:
        return json.loads(body, parse_int=_int, parse_float=_float, parse_constant=_float)
    except RecursionError:
        raise ValueError("too deep") from None


def _int(text: str) -> int:
    if len(text) > _MAX_DIGITS:
        raise ValueError("too large a number")
    return int(text)


def _float(text: str) -> float:
    value = float(text)
    if not abs(value) < 10.0**_MAX_DIGITS:  # NaN is not either
        raise ValueError("too large a number")
    return value
