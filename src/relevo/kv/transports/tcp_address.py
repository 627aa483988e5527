"""Addresses of the TCP transport: `tcp:HOST:PORT` inside a box, `tcp:HOST:PORT/NODE` between boxes.

IPv6 literals stand in brackets. Owns reading and writing them, and the sockets of a door.
"""

from __future__ import annotations

import contextlib
import re
import socket
from typing import NamedTuple

from relevo.core.errors import ProtocolError, StartError

_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
BACKLOG = 1024  # arbitrary; a flood waits in the kernel


class TcpAddress(NamedTuple):
    host: str  # without brackets
    port: int
    node: str = ""  # whose certificate the receiver shows; "": the secret of one start is its proof

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"tcp:{host}:{self.port}" + (f"/{self.node}" if self.node else "")


def split_address(address: str) -> TcpAddress:
    """ProtocolError if it is none."""
    kind, _, rest = address.partition(":")
    place, slash, node = rest.partition("/")
    host, _, port = place.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    is_whole = kind == "tcp" and bare and re.fullmatch("[0-9]{1,5}", port) and int(port) <= 65535
    if not is_whole or (":" in bare) != (bare != host) or bool(slash) != bool(_NODE.fullmatch(node)):
        raise ProtocolError(f"{address!r} is not the address of a tcp transport (tcp:HOST:PORT or tcp:HOST:PORT/NODE)")
    return TcpAddress(bare, int(port), node)


def connect(address: TcpAddress, timeout_s: float) -> socket.socket:
    """The name is looked up now, and every address of it tried. OSError whose words name no address: clients are told
    them."""
    return socket.create_connection((address.host, address.port), timeout_s)


def listen(host: str, ports: range) -> socket.socket:
    """At the first free port. "" or "::": all addresses of both families, or of IPv4 where there is no IPv6.
    StartError if none is free, or the host is not of this machine."""
    failure: OSError | None = None
    for port in ports:
        try:
            return _listener(host, port)
        except OSError as error:
            failure = error
    told = f"port {ports[0]}" if len(ports) == 1 else f"ports {ports[0]}-{ports[-1]}"
    why = failure.strerror if failure is not None else "there is none"
    raise StartError(f"the KV port cannot be opened at {host or '::'}, {told}: {why}; choose others with --kv-port")


def _listener(host: str, port: int) -> socket.socket:
    if host in ("", "::"):
        with contextlib.suppress(OSError):
            if socket.has_dualstack_ipv6():
                return socket.create_server(("::", port), family=socket.AF_INET6, backlog=BACKLOG, dualstack_ipv6=True)
        return socket.create_server(("0.0.0.0", port), backlog=BACKLOG)
    family, _, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(place)
        made.listen(BACKLOG)
    except BaseException:
        made.close()
        raise
    return made
