"""Where gateways reach a worker: `unix:/path` on this box, or through the node process of another (`node:...`), which
asks for a certificate. There is no other way to it."""

from __future__ import annotations

from typing import NamedTuple, Self

from relevo.core.errors import SettingsError
from relevo.core.host_port import HostPort

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


class NodeAddress(NamedTuple):
    """A worker behind the control port of its node, in one stay of that node with a head."""

    node: str
    epoch: int
    session: int
    place: HostPort
    worker_id: str

    def __str__(self) -> str:
        return f"node:{self.node} {self.epoch} {self.session} {self.place} {self.worker_id}"

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """None: it is no address of this kind."""
        if not text.startswith("node:"):
            return None
        node, epoch, session, place, worker_id = text.removeprefix("node:").split(" ", 4)
        return cls(node, int(epoch), int(session), HostPort.parse(place), worker_id)
