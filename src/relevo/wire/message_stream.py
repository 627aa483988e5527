"""Messages over a transport of asyncio: what is received and not yet taken, what is sent and not yet gone, and bounds.

Everything sent in one turn of the event loop leaves in one write. Does not know who is at the other end, nor what
messages mean; the end of the stream is an error that says who it was.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Generic, TypeVar, cast

from relevo.core.errors import ProtocolError, RelevoError, WorkerLost
from relevo.wire.framing import FrameDecoder

MAX_UNSENT_BYTES = 64 * 1024 * 1024  # arbitrary; a peer this far behind is as good as lost
_PAUSE_AT_MESSAGES = 4096  # arbitrary; received and not yet taken
_RESUME_AT_MESSAGES = 1024

M = TypeVar("M")


class MessageStream(asyncio.Protocol, Generic[M]):
    """`peer`: as sentences call it, "the worker at unix:/x" say."""

    def __init__(self, peer: str, decoder: FrameDecoder[M], max_unsent_bytes: int = MAX_UNSENT_BYTES) -> None:
        self.peer = peer
        self.end: RelevoError | None = None  # why nothing more will come; messages before it are still handed out
        self.decoder = decoder
        self.transport: asyncio.Transport | None = None
        self._max_unsent_bytes = max_unsent_bytes
        self._inbox: deque[M] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._is_paused = False
        self._unsent: list[bytes] = []
        self._num_batched_bytes = 0

    @property
    def num_unsent_bytes(self) -> int:
        in_transport = self.transport.get_write_buffer_size() if self.transport is not None else 0
        return in_transport + self._num_batched_bytes

    def send(self, frame: bytes) -> None:
        """Queue a frame, without waiting. WorkerLost if the stream has ended, or ends now because the peer has left
        more than `max_unsent_bytes` unread."""
        if self.end is not None:
            raise WorkerLost(self.end.message)
        if self.num_unsent_bytes + len(frame) > self._max_unsent_bytes:
            reason = f"{self.peer} has left {self.num_unsent_bytes} bytes unread"
            self.finish(WorkerLost(reason), abort=True)
            raise WorkerLost(reason)
        if not self._unsent:
            asyncio.get_running_loop().call_soon(self.flush)
        self._unsent.append(frame)
        self._num_batched_bytes += len(frame)

    async def receive(self) -> M:
        """The next message, in the order sent. After the last one WorkerLost, or ProtocolError if the peer sent
        nonsense. For one task at a time."""
        while not self._inbox:
            if self.end is not None:
                raise self.end.with_traceback(None)
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        message = self._inbox.popleft()
        if self._is_paused and len(self._inbox) <= _RESUME_AT_MESSAGES and self.transport is not None:
            self._is_paused = False
            self.transport.resume_reading()
        return message

    def flush(self) -> None:
        """Hand what was sent to the transport, before the turn is over."""
        if self._unsent and self.end is None and self.transport is not None:
            self.transport.write(b"".join(self._unsent))
        self._unsent.clear()
        self._num_batched_bytes = 0

    def take_all(self) -> list[M]:
        """What has been received and not been taken, at once."""
        taken = list(self._inbox)
        self._inbox.clear()
        return taken

    def finish(self, end: RelevoError, *, abort: bool = False) -> None:
        """The first reason counts. What has been sent before still leaves, unless `abort`."""
        if self.end is None:
            self.flush()
            self.end = end
            if self.transport is not None and abort:
                self.transport.abort()
            elif self.transport is not None:
                self.transport.close()
        self._wake()

    # ---- called by the event loop ------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        try:
            self._inbox.extend(self.decoder.feed(data))
        except ProtocolError as error:
            self.finish(error)
            return
        if len(self._inbox) >= _PAUSE_AT_MESSAGES and not self._is_paused and self.transport is not None:
            self._is_paused = True
            self.transport.pause_reading()
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self.finish(WorkerLost(f"{self.peer} closed the connection" + (f": {exc}" if exc else "")))

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
