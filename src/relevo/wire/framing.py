"""Messages as bytes: a length (u32, little-endian) and the msgpack of one tagged message.

Owns: the frame and its limits. Does not know sockets, nor what messages mean.
"""

from __future__ import annotations

import struct
from typing import Generic, TypeVar

import msgspec

from relevo.core.errors import ProtocolError
from relevo.wire.messages import ToGateway, ToWorker

MAX_FRAME_BYTES = 64 * 1024 * 1024  # arbitrary; a prompt of a million tokens takes about 5 MB
_LENGTH = struct.Struct("<I")
_encoder = msgspec.msgpack.Encoder()
_to_worker: msgspec.msgpack.Decoder[ToWorker] = msgspec.msgpack.Decoder(ToWorker)
_to_gateway: msgspec.msgpack.Decoder[ToGateway] = msgspec.msgpack.Decoder(ToGateway)

M = TypeVar("M")


def encode_frame(message: msgspec.Struct) -> bytes:
    """ProtocolError if the message is larger than a frame may be."""
    body = _encoder.encode(message)
    if len(body) > MAX_FRAME_BYTES:
        raise ProtocolError(f"a {type(message).__name__} of {len(body)} bytes exceeds the limit of {MAX_FRAME_BYTES}")
    return framed(body)


def framed(body: bytes) -> bytes:
    return _LENGTH.pack(len(body)) + body


class FrameDecoder(Generic[M]):
    """Turns a stream of bytes, cut anywhere, into messages. Once it has raised, the stream cannot be used further."""

    def __init__(self, decoder: msgspec.msgpack.Decoder[M], max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        self._decoder = decoder
        self.max_frame_bytes = max_frame_bytes
        self._buffer = bytearray()

    def rest(self) -> bytes:
        """What was fed and is of no message yet, for what reads the stream from here on."""
        return bytes(self._buffer)

    def feed(self, data: bytes | memoryview) -> list[M]:
        """The messages that `data` completes, in order. ProtocolError on a frame that is too large or unreadable."""
        self._buffer += data
        messages: list[M] = []
        start = 0
        while len(self._buffer) - start >= _LENGTH.size:
            (num_bytes,) = _LENGTH.unpack_from(self._buffer, start)
            if num_bytes > self.max_frame_bytes:
                raise ProtocolError(
                    f"the peer announced a frame of {num_bytes} bytes, the limit is {self.max_frame_bytes}"
                )
            end = start + _LENGTH.size + num_bytes
            if len(self._buffer) < end:
                break
            messages.append(self._decode(bytes(self._buffer[start + _LENGTH.size : end])))
            start = end
        del self._buffer[:start]
        return messages

    def _decode(self, body: bytes) -> M:
        try:
            return self._decoder.decode(body)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise ProtocolError(f"the peer sent a message that cannot be read: {error}") from error


def worker_side_decoder() -> FrameDecoder[ToWorker]:
    return FrameDecoder(_to_worker)


def gateway_side_decoder() -> FrameDecoder[ToGateway]:
    return FrameDecoder(_to_gateway)
