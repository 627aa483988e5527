"""One HTTP request of a command, without an event loop. What is on this machine is never asked for through a proxy."""

from __future__ import annotations

import ipaddress
import urllib.error
import urllib.request
from collections.abc import Mapping
from urllib.parse import urlsplit

_TIMEOUT_S = 10.0


def is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def fetch(url: str, *, method: str = "GET", headers: Mapping[str, str] | None = None) -> tuple[int, bytes]:
    """Status and body, of errors too. HTTP_PROXY and NO_PROXY count for other machines. Raises OSError, ValueError."""
    request = urllib.request.Request(url, method=method, headers=dict(headers or {}))
    handlers = [urllib.request.ProxyHandler({})] if is_loopback(url) else []
    try:
        with urllib.request.build_opener(*handlers).open(request, timeout=_TIMEOUT_S) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()
