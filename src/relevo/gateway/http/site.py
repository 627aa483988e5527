"""Which names a server without keys may be called by, so that a browser's page of another site cannot use it.

A page may send requests to any address that its browser reaches, this machine's own among them, and with a name that
it lets point there (DNS rebinding) it may read the answers too. Such a request says so: its Host is that name, its
Origin is the page's. Pure. Does not know keys: a page has none, so where one is asked for nothing is checked here.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from relevo.core.errors import RequestError

_SAFE_METHODS = frozenset(("GET", "HEAD", "OPTIONS"))  # change nothing, and a page cannot read what they answer


class ForeignSite(RequestError):
    code = "foreign_site"


@dataclass(frozen=True, slots=True)
class Site:
    """`is_local`: it is reached from this machine only; elsewhere nothing is checked."""

    is_local: bool = False
    allowed_hosts: tuple[str, ...] = ()  # "*": any
    allowed_origins: tuple[str, ...] = ()  # "*": any

    def check(self, method: str, headers: Mapping[str, str]) -> None:
        """Raises ForeignSite."""
        if not self.is_local or "*" in self.allowed_hosts:
            return
        host = _name_of(headers.get("host", ""))
        if not (_is_loopback(host) or _is_address(host) or self._is_allowed(host)):
            raise ForeignSite(
                f"This server has no API keys and is reached from this machine only, but the request is for {host!r}; "
                "start it with --allowed-hosts and that name if it is meant, or with API keys."
            )
        origin = headers.get("origin")
        if origin is None or method in _SAFE_METHODS:
            return
        page = _name_of(_netloc(origin))
        if {"*", origin} & set(self.allowed_origins) or page == host or _is_loopback(page) or self._is_allowed(page):
            return
        raise ForeignSite(
            f"This server has no API keys, and the request comes from a page of {origin[:200]!r}; start it with "
            "--allowed-origins and that origin if it is meant, or with API keys."
        )

    def _is_allowed(self, host: str) -> bool:
        return host != "" and host in (name.lower() for name in self.allowed_hosts)


def _netloc(origin: str) -> str:
    """Empty for `null` and everything else that has none."""
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return ""


def _name_of(host: str) -> str:
    """Without the port, the brackets, and the dot at the end."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].rstrip(".").lower()


def _is_loopback(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    return _is_address(host) and ipaddress.ip_address(host.partition("%")[0]).is_loopback


def _is_address(host: str) -> bool:
    """It is no name, which a stranger could let point elsewhere."""
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True
