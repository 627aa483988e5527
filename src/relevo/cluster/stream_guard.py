"""Ends the streams of nodes that were revoked, or whose certificate has expired, while they are open.

Looks at the disk once a second, as long as `run` runs. Owns which streams are open in this process.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import Protocol

from relevo.cluster.identity import NodeIdentity
from relevo.cluster.peer import Peer, PeerRefused

LOOK_S = 1.0  # arbitrary: how long a node goes on after it was revoked on this box


class Guarded(Protocol):
    """What lives on a certificate."""

    @property
    def peer(self) -> Peer | None: ...

    def end(self, refused: PeerRefused) -> None:
        """The peer may not hear or say any more. Idempotent."""
        ...


class StreamGuard:
    """One per process. `on_change`: something is new on the disk: a certificate of this node, or revocations."""

    def __init__(self, identity: NodeIdentity, on_change: Callable[[], None] = lambda: None) -> None:
        self._identity = identity
        self._on_change = on_change
        self._streams: set[Guarded] = set()

    @contextlib.contextmanager
    def watching(self, stream: Guarded) -> Iterator[None]:
        self.add(stream)
        try:
            yield
        finally:
            self.remove(stream)

    def add(self, stream: Guarded) -> None:
        self._streams.add(stream)

    def remove(self, stream: Guarded) -> None:
        self._streams.discard(stream)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            self.look()

    def look(self) -> None:
        """Now, after a revocation was learned."""
        has_changed = self._identity.refresh()
        for stream in list(self._streams):
            if stream.peer is None:
                continue
            try:
                self._identity.check(stream.peer)
            except PeerRefused as refused:
                stream.end(refused)
        if has_changed:
            self._on_change()
