"""Where a worker listens: `unix:/path` within a box, `tcp:HOST:PORT` between boxes."""

from __future__ import annotations

from dataclasses import dataclass

from relevo.core.errors import SettingsError

MAX_UNIX_PATH = 100  # characters; the kernel takes 107 bytes on Linux, 103 on macOS


@dataclass(frozen=True, slots=True)
class UnixAddress:
    path: str

    def __str__(self) -> str:
        return f"unix:{self.path}"


@dataclass(frozen=True, slots=True)
class TcpAddress:
    host: str  # without brackets
    port: int

    def __str__(self) -> str:
        return f"tcp:[{self.host}]:{self.port}" if ":" in self.host else f"tcp:{self.host}:{self.port}"


def parse_address(address: str) -> UnixAddress | TcpAddress:
    """SettingsError in one sentence if the text names no place to listen or connect to."""
    kind, _, rest = address.partition(":")
    if kind == "unix" and rest:
        if len(rest) > MAX_UNIX_PATH:
            raise SettingsError(
                f"The socket path {rest} has {len(rest)} characters, {MAX_UNIX_PATH} are allowed; "
                "use a shorter run directory."
            )
        return UnixAddress(rest)
    host, _, port = rest.rpartition(":")
    if kind == "tcp" and host and port.isdecimal() and int(port) < 65536:
        return TcpAddress(host.removeprefix("[").removesuffix("]"), int(port))
    raise SettingsError(f"{address!r} is not an address; write unix:/PATH or tcp:HOST:PORT.")
