"""Addresses as people write them and URLs as clients take them: an IPv6 address has brackets in one of the two."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from relevo.core.errors import SettingsError

_WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # what to listen on → where to reach it from here


def bare_host(host: str) -> str:
    """`[::1]` and `::1` are the same address."""
    return host[1:-1] if host.startswith("[") and host.endswith("]") else host


def authority(host: str, port: int) -> str:
    """`host:port` for a URL; a zone (`fe80::1%eth0`) keeps its name."""
    host = bare_host(host)
    return f"[{host.replace('%', '%25')}]:{port}" if ":" in host else f"{host}:{port}"


def server_url(host: str, port: int, *, scheme: str = "http") -> str:
    """Where a server that listens there is reached from this machine."""
    return f"{scheme}://{authority(_WILDCARDS.get(host, host), port)}"


def normalise_url(url: str, name: str = "the URL") -> str:
    """`host:port`, `http://host:port/` and `http://host:port/v1` all name the same server.

    Raises SettingsError, which calls the setting `name`.
    """
    with_scheme = url if "://" in url else f"http://{url}"
    check_server_url(with_scheme, name)
    return with_scheme.rstrip("/").removesuffix("/v1").rstrip("/")


def with_plain_zone(url: str) -> str:
    """`%eth0` for the `%25eth0` of a URL: Python's HTTP clients look up the address as it stands there."""
    return re.sub(r"(//\[[0-9A-Fa-f:.]+)%25", r"\1%", url, count=1)


def check_server_url(url: str, name: str) -> None:
    """Raises SettingsError, which calls the setting `name`, for a URL that no client takes."""
    url, host = _without_user(url), url.partition("://")[2].partition("/")[0].rpartition("@")[2]
    if host.count(":") > 1 and "[" not in host:
        raise SettingsError(f"{name} {url}: an IPv6 address stands in brackets; {_EXAMPLES}")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise SettingsError(f"{name} {url}: {error}; {_EXAMPLES}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise SettingsError(f"{name} {url}: this is no http or https URL of a server; {_EXAMPLES}")


def _without_user(url: str) -> str:
    """For messages: what stands before an `@` may be a password."""
    return re.sub(r"(//)[^/]*@", r"\1...@", url, count=1)


_EXAMPLES = "write it like http://10.0.0.5:8000 or http://[::1]:8000"
