"""The gateway's end of the connection to one worker. asyncio; one task receives, anything on the loop may send.

Owns: the handshake. Does not know requests; a connection that ends is not made again here.
"""

from __future__ import annotations

import asyncio
from typing import Self

from relevo.core.errors import ProtocolError, WorkerLost
from relevo.wire.address import unix_path
from relevo.wire.framing import encode_frame, gateway_side_decoder
from relevo.wire.message_stream import MAX_UNSENT_BYTES, MessageStream
from relevo.wire.messages import PROTOCOL_VERSION, Hello, ToGateway, ToWorker

OPEN_TIMEOUT_S = 5.0


class WorkerConnection:
    """Made by `open`. `hello` is the worker's first message."""

    hello: Hello

    def __init__(self, stream: MessageStream[ToGateway]) -> None:
        self._stream = stream

    @classmethod
    async def open(
        cls, address: str, *, timeout_s: float = OPEN_TIMEOUT_S, max_unsent_bytes: int = MAX_UNSENT_BYTES
    ) -> Self:
        """Connect and take the Hello. OSError (TimeoutError included) if none answers, WorkerLost if the worker
        hangs up, ProtocolError if it speaks another version."""
        path = unix_path(address)
        stream = worker_stream(f"the worker at {address}", max_unsent_bytes)
        async with asyncio.timeout(timeout_s):
            await asyncio.get_running_loop().create_unix_connection(lambda: stream, path)
            return await cls.over(stream)

    @classmethod
    async def over(cls, stream: MessageStream[ToGateway]) -> Self:
        """Take the Hello from a stream that is connected. It is closed if there is none that fits."""
        connection = cls(stream)
        try:
            connection.hello = _checked(await stream.receive(), stream.peer)
        except BaseException:
            connection.close()
            raise
        return connection

    def send(self, message: ToWorker) -> None:
        """Queue a message, without waiting. WorkerLost if the connection has ended, or ends now because the worker
        has left more than `max_unsent_bytes` unread."""
        self._stream.send(encode_frame(message))

    async def receive(self) -> ToGateway:
        """The next message, in the order sent. After the last one WorkerLost, or ProtocolError if the worker sent
        nonsense. For one task at a time."""
        return await self._stream.receive()

    def close(self) -> None:
        """Idempotent; a `receive` that waits ends with WorkerLost."""
        self._stream.finish(WorkerLost(f"the connection to {self._stream.peer} was closed"))


def _checked(message: ToGateway, peer: str) -> Hello:
    if not isinstance(message, Hello):
        raise ProtocolError(f"{peer} began with {type(message).__name__} instead of Hello")
    if message.protocol_version != PROTOCOL_VERSION:
        raise ProtocolError(
            f"{peer} speaks version {message.protocol_version} of the protocol, this gateway {PROTOCOL_VERSION}; "
            "install the same release on both"
        )
    return message


def worker_stream(peer: str, max_unsent_bytes: int = MAX_UNSENT_BYTES) -> MessageStream[ToGateway]:
    return MessageStream(peer, gateway_side_decoder(), max_unsent_bytes)
