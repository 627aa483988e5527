"""The socket that a server listens on. Imported before anything else of a start: a taken port is said at once."""

from __future__ import annotations

import errno
import socket

from relevo.core.errors import SettingsError
from relevo.core.urls import authority, bare_host


def open_listener(host: str, port: int) -> socket.socket:
    """Bound and listening, so that a taken port is found before anything is loaded. Raises SettingsError."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(bare_host(host), port, type=socket.SOCK_STREAM)[0]
    except socket.gaierror as error:
        raise SettingsError(
            f"--host {host} cannot be resolved: {error.strerror}; use an address of this machine"
        ) from error
    listener = socket.socket(family, kind, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise SettingsError(f"{authority(host, port)} cannot be used: {error.strerror}; {_fix(error)}") from error
    listener.listen(2048)
    return listener


def _fix(error: OSError) -> str:
    if error.errno in (errno.EADDRNOTAVAIL, errno.EINVAL, errno.EAFNOSUPPORT):
        return "--host takes an address of this machine, a link-local one with its interface, as in fe80::1%eth0"
    return "choose another --port, or 0 for a free one"


def bound_address(listener: socket.socket) -> tuple[str, int]:
    """Host and port; a link-local address keeps its interface, without which no client reaches it."""
    host, port = socket.getnameinfo(listener.getsockname(), socket.NI_NUMERICHOST | socket.NI_NUMERICSERV)
    return host, int(port)
