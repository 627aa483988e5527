"""An address of the network as people write it, parsed once: `host:port`, `10.0.0.5:7000`, `[fe80::1%eth0]:7000`.

A name stays a name: it is looked up at each attempt to connect, by what connects.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import Self

from relevo.core.errors import SettingsError

_NAME = re.compile(r"(?=.{1,253}\Z)[A-Za-z0-9_]([A-Za-z0-9_-]{0,62})(\.[A-Za-z0-9_]([A-Za-z0-9_-]{0,62}))*\.?")
_ZONE = re.compile(r"[A-Za-z0-9_.-]{1,32}")
_EXAMPLES = "write it like 10.0.0.5:7000, box-a.example.com:7000 or [fd00::5]:7000"


@dataclass(frozen=True, slots=True, order=True)
class HostPort:
    """`host` without brackets: a name, an IPv4 or an IPv6 address in its shortest form, with its zone."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str, name: str = "the address", *, default_port: int | None = None) -> Self:
        """SettingsError, which calls the setting `name`. `default_port`: where the text may end with the host."""
        host, port = _parts(text.strip(), name, default_port)
        if not 0 <= port <= 65535:
            raise SettingsError(f"{name} {text!r}: a port is a number up to 65535; {_EXAMPLES}")
        return cls(_checked_host(host, text, name), port)

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_wildcard(self) -> bool:
        """Good to listen at, and no place to connect to."""
        return self.host in ("0.0.0.0", "::")

    @property
    def is_literal(self) -> bool:
        """It needs no look-up."""
        return _literal(self.host) is not None


def parse_host_ports(text: str, name: str = "the address") -> tuple[HostPort, ...]:
    """`a:1,b:2`; one at least. SettingsError."""
    return tuple(dict.fromkeys(HostPort.parse(part, name) for part in text.split(",")))


def _parts(text: str, name: str, default_port: int | None) -> tuple[str, int]:
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        if not bracket or ":" not in host or (rest and not rest.startswith(":")):
            raise SettingsError(f"{name} {text!r}: an IPv6 address stands in brackets; {_EXAMPLES}")
        digits = rest[1:]
    elif text.count(":") > 1:
        raise SettingsError(f"{name} {text!r}: an IPv6 address stands in brackets; {_EXAMPLES}")
    else:
        host, _, digits = text.partition(":")
    if not digits and default_port is not None and not text.endswith(":"):
        return host, default_port
    if not re.fullmatch(r"[0-9]{1,5}", digits):
        raise SettingsError(f"{name} {text!r} has no port; {_EXAMPLES}")
    return host, int(digits)


def _checked_host(host: str, text: str, name: str) -> str:
    literal = _literal(host)
    if literal is not None:
        return literal
    looks_like_ipv4 = re.fullmatch(r"[0-9.]+", host) is not None
    if ":" in host or looks_like_ipv4 or not _NAME.fullmatch(host):
        raise SettingsError(f"{name} {text!r}: {host!r} is neither a host name nor an IP address; {_EXAMPLES}")
    return host.lower()


def _literal(host: str) -> str | None:
    bare, percent, zone = host.partition("%")
    if percent and not _ZONE.fullmatch(zone):
        return None
    try:
        address = ipaddress.ip_address(bare)
    except ValueError:
        return None
    if percent and address.version != 6:
        return None
    return str(address) + percent + zone
