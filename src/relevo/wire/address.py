"""Where a worker listens for gateways: `unix:/path`. There is no other way to it: a network would need keys."""

from __future__ import annotations

from relevo.core.errors import SettingsError

MAX_UNIX_PATH = 100  # characters; the kernel takes 107 bytes on Linux, 103 on macOS


def unix_path(address: str) -> str:
    """SettingsError in one sentence if the text names no place to listen or connect to."""
    kind, _, path = address.partition(":")
    if kind != "unix" or not path:
        raise SettingsError(f"{address!r} is not an address; write unix:/PATH.")
    if len(path) > MAX_UNIX_PATH:
        raise SettingsError(
            f"The socket path {path} has {len(path)} characters, {MAX_UNIX_PATH} are allowed; use a shorter run "
            "directory (TMPDIR)."
        )
    return path
