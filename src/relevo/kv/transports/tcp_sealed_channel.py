"""The bytes of a KV connection between boxes, in encrypted records: tcp_channel.Channel."""

from __future__ import annotations

import socket
from collections.abc import Sequence

from relevo.kv.grants import Grant
from relevo.kv.lent_blocks import LentBlocks
from relevo.kv.transports.tcp_channel import advance
from relevo.kv.transports.tcp_sealing import (
    HEADER,
    MAX_RECORD_BYTES,
    TAG_BYTES,
    RecordKeys,
    checked_size,
    record_bytes,
)


class SealedChannel:
    """Through one buffer each way, in which the cipher works: bytes are opened straight into the views."""

    def __init__(self, sock: socket.socket, sending: bytes, receiving: bytes) -> None:
        """`sending`, `receiving`: the secrets of both directions."""
        self.sock = sock
        self._sending, self._receiving = RecordKeys(sending), RecordKeys(receiving)
        most = record_bytes(MAX_RECORD_BYTES)
        self._out = memoryview(bytearray(most))
        self._gathered = memoryview(bytearray(MAX_RECORD_BYTES))
        self._in = memoryview(bytearray(most))
        self._plain = memoryview(bytearray(MAX_RECORD_BYTES))
        self._left = self._plain[:0]  # opened, and not asked for yet

    def send(self, views: Sequence[memoryview], blocks: LentBlocks | None = None) -> None:
        """What is large travels from where it lies; small neighbours share a record."""
        gathered = 0
        for lent in (LentBlocks(views), blocks):
            if lent is not None:
                gathered = self._send_lent(lent, gathered)
        if gathered:
            self._send_record(self._sending.seal(self._gathered[:gathered], self._out))

    def _send_lent(self, lent: LentBlocks, gathered: int) -> int:
        """All of it, but for what is gathered then; `gathered`: what was before. Sealed with the lock held, sent
        without it."""
        while True:
            with lent.lock:
                if not lent.rest:
                    return gathered
                piece = lent.rest[0].cast("B")[:MAX_RECORD_BYTES]
                if gathered + len(piece) > MAX_RECORD_BYTES:
                    size, gathered, piece = self._sending.seal(self._gathered[:gathered], self._out), 0, piece[:0]
                elif len(piece) == MAX_RECORD_BYTES:
                    size = self._sending.seal(piece, self._out)
                else:
                    self._gathered[gathered : gathered + len(piece)] = piece
                    size, gathered = 0, gathered + len(piece)
                lent.rest = advance(lent.rest, len(piece))
            if size:
                self._send_record(size)

    def receive_into(self, views: Sequence[memoryview]) -> None:
        for view in views:
            rest = view.cast("B")
            while rest:
                if not self._left:
                    self._open(self._receive())
                rest = self._take(rest)

    def store(self, views: Sequence[memoryview], grant: Grant | None) -> bool:
        is_whole = True
        rest = [view.cast("B") for view in views]
        while rest:
            sealed = None if self._left else self._receive()
            if grant is None:
                self._skip(rest, sealed)
                return False
            with grant.lock:
                if not grant.is_open:
                    is_whole = False
                elif sealed is None:
                    rest = advance(rest, len(rest[0]) - len(self._take(rest[0])))
                elif (size := len(sealed) - TAG_BYTES) <= len(rest[0]):
                    self._receiving.open(sealed, rest[0][:size])
                    rest = advance(rest, size)
                else:
                    self._open(sealed)
            if not is_whole:
                self._skip(rest, sealed)
                return False
        return True

    def _skip(self, views: Sequence[memoryview], sealed: memoryview | None) -> None:
        """Open and forget as much as the views hold; records are counted, so that the next one opens."""
        missing = sum(len(view) for view in views)
        while missing:
            if not self._left:
                self._open(self._receive() if sealed is None else sealed)
                sealed = None
            count = min(missing, len(self._left))
            self._left = self._left[count:]
            missing -= count

    def _send_record(self, size: int) -> None:
        self.sock.sendall(self._out[:size])

    def _receive(self) -> memoryview:
        """Ciphertext and tag of the next record."""
        header = self._in[: HEADER.size]
        _fill(self.sock, header)
        body = self._in[: checked_size(header) + TAG_BYTES]
        _fill(self.sock, body)
        return body

    def _open(self, sealed: memoryview) -> None:
        opened = self._plain[: len(sealed) - TAG_BYTES]
        self._receiving.open(sealed, opened)
        self._left = opened

    def _take(self, view: memoryview) -> memoryview:
        """Move what is left into the front of the view; returns the rest of it."""
        count = min(len(view), len(self._left))
        view[:count] = self._left[:count]
        self._left = self._left[count:]
        return view[count:]


def _fill(sock: socket.socket, view: memoryview) -> None:
    while view:
        count = sock.recv_into(view, 0, socket.MSG_WAITALL)
        if count == 0:
            raise ConnectionError("the peer closed the connection")
        view = view[count:]
