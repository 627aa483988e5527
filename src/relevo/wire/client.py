"""The gateway's end of the connection to one worker. asyncio; one task receives, anything on the loop may send.

Owns: the handshake, what is buffered in both directions and its bounds. Everything sent in one turn of the event loop
leaves in one write. Does not know requests; a connection that ends is not made again here.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import cast

from relevo.core.errors import ProtocolError, RelevoError, WorkerLost
from relevo.wire.address import unix_path
from relevo.wire.framing import encode_frame, gateway_side_decoder
from relevo.wire.messages import PROTOCOL_VERSION, Hello, ToGateway, ToWorker

MAX_UNSENT_BYTES = 64 * 1024 * 1024  # arbitrary; a worker this far behind is as good as lost
_PAUSE_AT_MESSAGES = 4096  # arbitrary; received and not yet taken
_RESUME_AT_MESSAGES = 1024
OPEN_TIMEOUT_S = 5.0


class WorkerConnection:
    """Made by `open`. `hello` is the worker's first message."""

    hello: Hello

    def __init__(self, stream: _Stream, max_unsent_bytes: int) -> None:
        self._stream = stream
        self._max_unsent_bytes = max_unsent_bytes

    @classmethod
    async def open(
        cls, address: str, *, timeout_s: float = OPEN_TIMEOUT_S, max_unsent_bytes: int = MAX_UNSENT_BYTES
    ) -> WorkerConnection:
        """Connect and take the Hello. OSError (TimeoutError included) if none answers, WorkerLost if the worker
        hangs up, ProtocolError if it speaks another version."""
        path = unix_path(address)
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(timeout_s):
            _, stream = await loop.create_unix_connection(lambda: _Stream(address), path)
            connection = cls(stream, max_unsent_bytes)
            try:
                connection.hello = _checked(await connection.receive(), address)
            except BaseException:
                connection.close()
                raise
        return connection

    def send(self, message: ToWorker) -> None:
        """Queue a message, without waiting. WorkerLost if the connection has ended, or ends now because the worker
        has left more than `max_unsent_bytes` unread."""
        frame = encode_frame(message)
        if self._stream.end is not None:
            raise WorkerLost(self._stream.end.message)
        if self._stream.num_unsent_bytes + len(frame) > self._max_unsent_bytes:
            reason = f"the worker at {self._stream.address} has left {self._stream.num_unsent_bytes} bytes unread"
            self._stream.finish(WorkerLost(reason), abort=True)
            raise WorkerLost(reason)
        self._stream.send(frame)

    async def receive(self) -> ToGateway:
        """The next message, in the order sent. After the last one WorkerLost, or ProtocolError if the worker sent
        nonsense. For one task at a time."""
        return await self._stream.receive()

    def close(self) -> None:
        """Idempotent; a `receive` that waits ends with WorkerLost."""
        self._stream.finish(WorkerLost(f"the connection to {self._stream.address} was closed"))


def _checked(message: ToGateway, address: str) -> Hello:
    if not isinstance(message, Hello):
        raise ProtocolError(f"{address} began with {type(message).__name__} instead of Hello")
    if message.protocol_version != PROTOCOL_VERSION:
        raise ProtocolError(
            f"{address} speaks version {message.protocol_version} of the protocol, this gateway {PROTOCOL_VERSION}; "
            "install the same release on both"
        )
    return message


class _Stream(asyncio.Protocol):
    """Bytes to messages and back, on the event loop."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.end: RelevoError | None = None  # why nothing more will come; messages before it are still handed out
        self._transport: asyncio.Transport | None = None
        self._decoder = gateway_side_decoder()
        self._inbox: deque[ToGateway] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._is_paused = False
        self._unsent: list[bytes] = []
        self._num_batched_bytes = 0

    @property
    def num_unsent_bytes(self) -> int:
        in_transport = self._transport.get_write_buffer_size() if self._transport is not None else 0
        return in_transport + self._num_batched_bytes

    def send(self, frame: bytes) -> None:
        if not self._unsent:
            asyncio.get_running_loop().call_soon(self._flush)
        self._unsent.append(frame)
        self._num_batched_bytes += len(frame)

    async def receive(self) -> ToGateway:
        while not self._inbox:
            if self.end is not None:
                raise type(self.end)(self.end.message)
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        message = self._inbox.popleft()
        if self._is_paused and len(self._inbox) <= _RESUME_AT_MESSAGES and self._transport is not None:
            self._is_paused = False
            self._transport.resume_reading()
        return message

    def finish(self, end: RelevoError, *, abort: bool = False) -> None:
        """The first reason counts. What has been sent before still leaves, unless `abort`."""
        if self.end is None:
            self._flush()
            self.end = end
            if self._transport is not None and abort:
                self._transport.abort()
            elif self._transport is not None:
                self._transport.close()
        self._wake()

    # ---- called by the event loop ------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        try:
            self._inbox.extend(self._decoder.feed(data))
        except ProtocolError as error:
            self.finish(error)
            return
        if len(self._inbox) >= _PAUSE_AT_MESSAGES and not self._is_paused and self._transport is not None:
            self._is_paused = True
            self._transport.pause_reading()
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self.finish(WorkerLost(f"the worker at {self.address} closed the connection" + (f": {exc}" if exc else "")))

    def _flush(self) -> None:
        if self._unsent and self.end is None and self._transport is not None:
            self._transport.write(b"".join(self._unsent))
        self._unsent.clear()
        self._num_batched_bytes = 0

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
