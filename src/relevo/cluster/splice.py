"""Bytes between two connections, both ways, unread. Each side is paused while the other does not take what it said.

What may pass is asked before each piece is passed on: a node that was frozen says nothing more to a head that has given
it up meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast


class Splice:
    """Of `near`, a connection that is open, and `far`, a protocol for one that is being opened."""

    def __init__(self, may_pass: Callable[[], bool]) -> None:
        self._may_pass = may_pass
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.near, self.far = _End(self), _End(self)
        self.near.other, self.far.other = self.far, self.near

    def end(self) -> None:
        """Both ends, at once. Idempotent."""
        for side in (self.near, self.far):
            if side.transport is not None:
                side.transport.abort()
        if not self.ended.done():
            self.ended.set_result(None)

    def may_pass(self) -> bool:
        if self.ended.done():
            return False
        if not self._may_pass():
            self.end()
            return False
        return True

    def half_ended(self) -> None:
        """One end is gone: what it said last still arrives at the other."""
        for side in (self.near, self.far):
            if side.transport is not None and not side.transport.is_closing():
                side.transport.close()
        if not self.ended.done():
            self.ended.set_result(None)


class _End(asyncio.Protocol):
    def __init__(self, splice: Splice) -> None:
        self._splice = splice
        self.transport: asyncio.Transport | None = None
        self.other: _End

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if self._splice.may_pass() and self.other.transport is not None:
            self.other.transport.write(data)

    def pause_writing(self) -> None:
        if self.other.transport is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other.transport is not None:
            self.other.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._splice.half_ended()
