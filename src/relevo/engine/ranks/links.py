"""The way between two ranks, as one of them holds it.

Owns the promise of a link, and the one between threads of one process, which tests take; `shared_memory` has the one
between processes.
"""

from __future__ import annotations

import queue
from collections.abc import Sequence
from typing import Protocol

from relevo.engine.ranks.collectives import Array


class LinkClosed(Exception):
    """The other end is gone."""


class Link(Protocol):
    """Lists of arrays in both directions, in order. Every call may raise LinkClosed."""

    def send(self, arrays: Sequence[Array]) -> None:
        """The arrays may be written again as soon as it returns."""
        ...

    def receive(self) -> list[Array]:
        """Waits for it. The arrays are the caller's own."""
        ...

    def close(self) -> None:
        """Idempotent."""
        ...


_Parcels = queue.SimpleQueue[list[Array] | None]  # None: the link is closed


class LocalLink:
    """Implements Link between two threads of one process."""

    def __init__(self, outgoing: _Parcels, incoming: _Parcels) -> None:
        self._outgoing, self._incoming = outgoing, incoming
        self._is_closed = False

    @classmethod
    def pair(cls) -> tuple[LocalLink, LocalLink]:
        there: _Parcels = queue.SimpleQueue()
        back: _Parcels = queue.SimpleQueue()
        return cls(there, back), cls(back, there)

    def send(self, arrays: Sequence[Array]) -> None:
        if self._is_closed:
            raise LinkClosed
        self._outgoing.put([array.copy() for array in arrays])

    def receive(self) -> list[Array]:
        parcel = None if self._is_closed else self._incoming.get()
        if parcel is None:
            self.close()
            raise LinkClosed
        return parcel

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._outgoing.put(None)
