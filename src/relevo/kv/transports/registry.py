"""The transports there are, by the names that `--kv-transport` takes. A new one is a file and a line here
(docs/developers/transport.md).

Owns what has to be known of a transport before it is opened: its reach, and whether it listens and so needs the secret
of this start. Loads a transport's module when one is opened, so that a process that only plans imports none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

from relevo.core.handoff import Reach
from relevo.core.ids import WorkerRef
from relevo.core.ports import KVTransport

if TYPE_CHECKING:
    from relevo.kv.arena import Arena
    from relevo.kv.door import KVDoor


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnEnd:
    """The worker that a transport is opened for."""

    worker: WorkerRef
    arena: Arena
    secret: bytes  # shared by the workers of one start of a server; empty if no transport of the worker needs it
    on_wake: Callable[[], None]  # from any thread: `poll` has something
    door: KVDoor | None = None  # to other boxes; None: workers of this start only


@dataclass(frozen=True, slots=True)
class TransportKind:
    reach: Reach
    open: Callable[[OwnEnd], KVTransport]
    needs_secret: bool = False


def _from_module(name: str) -> Callable[[OwnEnd], KVTransport]:
    """Of a module with a function `open_transport`."""

    def open_there(own: OwnEnd) -> KVTransport:
        transport: KVTransport = import_module(name).open_transport(own)
        return transport

    return open_there


TRANSPORTS: dict[str, TransportKind] = {
    "shm": TransportKind(Reach.ARENA, _from_module("relevo.kv.transports.shm")),
    "tcp": TransportKind(Reach.NETWORK, _from_module("relevo.kv.transports.tcp"), needs_secret=True),
}
