"""A stream of bytes between two nodes that goes on over another connection before its certificates expire.

Both ends count what they have sent. To move, each says its count on the new connection and writes there from then on;
what the other still has to read of the old one is known by that count, so no byte is lost, repeated or overtaken. Looks
like a transport to the protocol above it. Does not know what the bytes mean, nor when it is time to move.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable

from relevo.cluster.peer import Peer, PeerRefused
from relevo.cluster.stream import FramedStream

_COUNT = struct.Struct("<Q")
MOVE_TIMEOUT_S = 5.0  # arbitrary; the old connection is read to its end within it


class _Leg(asyncio.Protocol):
    """One connection of a carrier, from the moment it carries raw bytes."""

    def __init__(self, carrier: Carrier, stream: FramedStream) -> None:
        self.carrier = carrier
        self.peer = stream.peer
        self.transport, self.early = stream.detach(self.end)
        self.transport.set_protocol(self)
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        self.carrier.hear(self, data)

    def pause_writing(self) -> None:
        self.carrier.writing_paused(self, is_paused=True)

    def resume_writing(self) -> None:
        self.carrier.writing_paused(self, is_paused=False)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.over.done():
            self.over.set_result(None)
        self.carrier.leg_lost(self, exc)

    def end(self, refused: PeerRefused) -> None:
        """What has moved on lives on the certificates of the next one."""
        self.carrier.leg_lost(self, refused)
        self.transport.abort()


class Carrier(asyncio.Transport):
    """Made over a stream that both ends have agreed to detach. `start` gives it the protocol that it feeds."""

    def __init__(self, stream: FramedStream, on_end: Callable[[], None] = lambda: None) -> None:
        super().__init__()
        self._reading = self._writing = _Leg(self, stream)
        self._next: _Leg | None = None  # it is written to, or will be once the other end has counted
        self._speaks_first = False
        self._limit: int | None = None  # bytes that come over the old connection, all told
        self._deadline: asyncio.TimerHandle | None = None
        self._protocol: asyncio.BaseProtocol | None = None
        self._on_end = on_end
        self._is_reading_paused = False
        self._is_writing_paused = False
        self._is_over = False
        self.num_sent_bytes = 0
        self.num_received_bytes = 0

    @property
    def peer(self) -> Peer | None:
        return self._writing.peer

    @property
    def leg_over(self) -> asyncio.Future[None]:
        """Done when the connection that it is written to now has ended."""
        return self._writing.over

    def end(self, refused: PeerRefused) -> None:
        self.lost(refused)

    def start(self, protocol: asyncio.Protocol) -> None:
        self._protocol = protocol
        protocol.connection_made(self)
        self._hear_early()

    # ---- as a transport ----------------------------------------------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.num_sent_bytes += len(data)
        self._writing.transport.write(data)

    def get_write_buffer_size(self) -> int:
        return sum(leg.transport.get_write_buffer_size() for leg in self._legs())

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._writing.transport.set_write_buffer_limits(high, low)

    def pause_reading(self) -> None:
        if not self._is_reading_paused and not self._is_over:
            self._is_reading_paused = True
            self._reading.transport.pause_reading()

    def resume_reading(self) -> None:
        if self._is_reading_paused and not self._is_over:
            self._is_reading_paused = False
            self._reading.transport.resume_reading()
            self._hear_early()

    def get_extra_info(self, name: str, default: object = None) -> object:
        return self._writing.transport.get_extra_info(name, default)

    def is_closing(self) -> bool:
        return self._is_over or self._writing.transport.is_closing()

    def close(self) -> None:
        for leg in self._legs():
            leg.transport.close()

    def abort(self) -> None:
        for leg in self._legs():
            leg.transport.abort()

    # ---- moving ------------------------------------------------------------------------------------------------------

    @property
    def can_move(self) -> bool:
        return self._next is None and not self.is_closing()

    def move_to(self, stream: FramedStream, *, speaks_first: bool) -> asyncio.Future[None]:
        """Both ends have agreed to. The future is done when the new connection has ended."""
        assert self.can_move
        leg = self._next = _Leg(self, stream)
        self._speaks_first = speaks_first
        self._deadline = asyncio.get_running_loop().call_later(
            MOVE_TIMEOUT_S, self.lost, TimeoutError("it did not move to a new connection in time")
        )
        if speaks_first:
            self._write_to_next()
        early, leg.early = leg.early, b""
        if early:
            self.hear(leg, early)
        return leg.over

    def _write_to_next(self) -> None:
        assert self._next is not None
        self._next.transport.write(_COUNT.pack(self.num_sent_bytes))
        old, self._writing = self._writing, self._next
        self.writing_paused(old, is_paused=False)

    def _heard_count(self, leg: _Leg, data: bytes) -> None:
        """On the new connection: how much comes over the old one, and then what follows it."""
        leg.early += data
        if len(leg.early) < _COUNT.size:
            return
        if self._limit is None:
            (self._limit,) = _COUNT.unpack_from(leg.early)
            leg.early = leg.early[_COUNT.size :]
            if not self._speaks_first:
                self._write_to_next()
            leg.transport.pause_reading()
            self._read_next()

    def _read_next(self) -> None:
        """Once everything of the old connection has been read."""
        leg = self._next
        if leg is None or self._limit is None or self.num_received_bytes < self._limit:
            return
        old, self._reading, self._next, self._limit = self._reading, leg, None, None
        old.transport.close()
        if self._deadline is not None:
            self._deadline.cancel()
        if not self._is_reading_paused:
            leg.transport.resume_reading()
        self._hear_early()

    def _hear_early(self) -> None:
        """What a connection had received before it was its turn."""
        if self._reading.early and not self._is_reading_paused:
            early, self._reading.early = self._reading.early, b""
            self.hear(self._reading, early)

    # ---- called by the legs ------------------------------------------------------------------------------------------

    def hear(self, leg: _Leg, data: bytes) -> None:
        if self._is_over:
            return
        if leg is self._next:
            self._heard_count(leg, data)
            return
        if leg is not self._reading:
            return
        self.num_received_bytes += len(data)
        if self._limit is not None and self.num_received_bytes > self._limit:
            self.lost(ValueError("it went on over a connection that it had left"))
            return
        assert isinstance(self._protocol, asyncio.Protocol)
        self._protocol.data_received(data)
        self._read_next()

    def writing_paused(self, leg: _Leg, *, is_paused: bool) -> None:
        if leg is not self._writing and is_paused:
            return
        if self._protocol is not None and is_paused != self._is_writing_paused:
            self._is_writing_paused = is_paused
            if is_paused:
                self._protocol.pause_writing()
            else:
                self._protocol.resume_writing()

    def leg_lost(self, leg: _Leg, exc: Exception | None) -> None:
        if leg in self._legs():
            self.lost(exc)

    def lost(self, exc: Exception | None) -> None:
        """The end of the carrier, once; at once."""
        if self._is_over:
            return
        self._is_over = True
        if self._deadline is not None:
            self._deadline.cancel()
        self.abort()
        self._on_end()
        if self._protocol is not None:
            self._protocol.connection_lost(exc)

    def _legs(self) -> list[_Leg]:
        return list({id(leg): leg for leg in (self._reading, self._writing, self._next) if leg is not None}.values())
