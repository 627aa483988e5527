"""The bytes of a KV connection after its handshake: as they are, or in encrypted records.

Owns whole-buffer input and output, and that bytes of a write land only while its grant is open: what is stored is
stored with the grant's lock held, in pieces that are here already; waiting for the network happens without it. Does not
know frames.
"""

from __future__ import annotations

import select
import socket
from collections.abc import Sequence
from typing import Protocol

from relevo.kv.grants import Grant
from relevo.kv.lent_blocks import LentBlocks
from relevo.kv.transports.tcp_handshake import Session

MAX_IO_VECTORS = 512  # below every platform's IOV_MAX
_SCRATCH_BYTES = 64 * 1024


class Channel(Protocol):
    """One thread sends and one receives; they may be two."""

    sock: socket.socket

    def send(self, views: Sequence[memoryview], blocks: LentBlocks | None = None) -> None:
        """The views, then the blocks. Waits until the kernel has taken everything."""
        ...

    def receive_into(self, views: Sequence[memoryview]) -> None:
        """Fill the views in order. ConnectionError if the stream ends before."""
        ...

    def store(self, views: Sequence[memoryview], grant: Grant | None) -> bool:
        """As `receive_into`, but only while the grant is open; what comes later is read to nowhere. Returns whether
        everything was stored."""
        ...


def open_channel(sock: socket.socket, session: Session) -> Channel:
    if session.secrets is None:
        return PlainChannel(sock)
    from relevo.kv.transports.tcp_sealed_channel import SealedChannel  # what is not encrypted needs no cipher

    return SealedChannel(sock, *session.secrets)


class PlainChannel:
    """From the arena to the kernel and back without a copy of our own."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._readable, self._writable = select.poll(), select.poll()
        self._readable.register(sock, select.POLLIN)
        self._writable.register(sock, select.POLLOUT)

    def send(self, views: Sequence[memoryview], blocks: LentBlocks | None = None) -> None:
        rest, flags = list(views), 0 if blocks is None else socket.MSG_MORE
        while rest:
            rest = advance(rest, self.sock.sendmsg(rest[:MAX_IO_VECTORS], (), flags))
        if blocks is not None:
            self._send_blocks(blocks)

    def _send_blocks(self, blocks: LentBlocks) -> None:
        while True:
            with blocks.lock:
                if not blocks.rest:
                    return
                try:
                    count = self.sock.sendmsg(blocks.rest[:MAX_IO_VECTORS], (), socket.MSG_DONTWAIT)
                except BlockingIOError:
                    count = 0
                blocks.rest = advance(blocks.rest, count)
            if not count:
                self._writable.poll()

    def receive_into(self, views: Sequence[memoryview]) -> None:
        rest = list(views)
        while rest:
            count = self.sock.recvmsg_into(rest[:MAX_IO_VECTORS])[0]
            if count == 0:
                raise ConnectionError("the peer closed the connection")
            rest = advance(rest, count)

    def store(self, views: Sequence[memoryview], grant: Grant | None) -> bool:
        rest = list(views)
        while rest:
            if grant is None:
                self._drain(sum(view.nbytes for view in rest))
                return False
            with grant.lock:
                if not grant.is_open:
                    grant = None
                    continue
                try:
                    count = self.sock.recvmsg_into(rest[:MAX_IO_VECTORS], 0, socket.MSG_DONTWAIT)[0]
                except BlockingIOError:
                    count = -1
            if count == 0:
                raise ConnectionError("the sender closed the connection inside a block")
            if count < 0:
                self._readable.poll()
            else:
                rest = advance(rest, count)
        return True

    def _drain(self, num_bytes: int) -> None:
        scratch = memoryview(bytearray(min(num_bytes, _SCRATCH_BYTES)))
        while num_bytes:
            piece = scratch[: min(num_bytes, len(scratch))]
            self.receive_into([piece])
            num_bytes -= len(piece)


def advance(views: list[memoryview], num_bytes: int) -> list[memoryview]:
    """What is left of `views` after their first `num_bytes` bytes."""
    for index, view in enumerate(views):
        if num_bytes < view.nbytes:
            return [view[num_bytes:], *views[index + 1 :]]
        num_bytes -= view.nbytes
    return []
