"""What two TCP transports that know each other say: a fixed prefix, a msgpack head, then raw block bytes.

    "RLKV" | version u16 | 0 u16 | head_bytes u32 | payload_bytes u64 | head | payload        (little-endian)

Owns: the frames and whole-buffer socket input and output. Does not know grants, queues or threads.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Sequence
from typing import ClassVar

import msgspec

from relevo.core.errors import ProtocolError
from relevo.core.ids import BlockId, RequestId
from relevo.core.kv import KVLayout
from relevo.kv.transports.tcp_handshake import KV_PROTOCOL_VERSION

MAX_HEAD_BYTES = 4 * 1024 * 1024  # arbitrary; a head names a few hundred blocks
MAX_IO_VECTORS = 512  # below every platform's IOV_MAX
_MAGIC = b"RLKV"
_PREFIX = struct.Struct("<4sHHIQ")


class Frame(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Base of all frames. `has_payload` frames are followed by the bytes of their blocks, in order."""

    has_payload: ClassVar[bool] = False


class Connect(Frame, frozen=True, tag=True):
    """First frame after the handshake, from the sender; answered with Accepted or Rejected."""

    layout: KVLayout


class Accepted(Frame, frozen=True, tag=True):
    pass


class Rejected(Frame, frozen=True, tag=True):
    reason: str


class WriteBlocks(Frame, frozen=True, tag=True):
    has_payload: ClassVar[bool] = True

    ticket: int
    request_id: RequestId
    epoch: int
    first_index: int  # of block_ids in the reservation
    block_ids: tuple[BlockId, ...]  # of the receiver
    generations: tuple[int, ...]
    checksums: tuple[int, ...] = ()  # crc32 per block; empty: not checked


class Seal(Frame, frozen=True, tag=True):
    """Answered once everything sent before it on this connection has been stored or refused. Names one open block."""

    ticket: int
    request_id: RequestId
    epoch: int
    index: int
    block_id: BlockId
    generation: int


class Applied(Frame, frozen=True, tag=True):
    ticket: int


class Refused(Frame, frozen=True, tag=True):
    ticket: int
    reason: str
    stale: bool


AnyFrame = Connect | Accepted | Rejected | WriteBlocks | Seal | Applied | Refused

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[AnyFrame] = msgspec.msgpack.Decoder(AnyFrame)


def send_frame(sock: socket.socket, frame: AnyFrame, payload: Sequence[memoryview] = ()) -> None:
    """Blocks until the kernel has taken everything; block bytes are not copied in this process."""
    head = _encoder.encode(frame)
    prefix = _PREFIX.pack(_MAGIC, KV_PROTOCOL_VERSION, 0, len(head), sum(view.nbytes for view in payload))
    views = [memoryview(prefix + head), *payload]
    while views:
        views = advance(views, sock.sendmsg(views[:MAX_IO_VECTORS]))


def receive_frame(sock: socket.socket) -> tuple[AnyFrame, int]:
    """(frame, payload bytes still to be read). ConnectionError at the end of the stream, ProtocolError on nonsense."""
    prefix = bytearray(_PREFIX.size)
    receive_into(sock, [memoryview(prefix)])
    magic, version, _, head_bytes, payload_bytes = _PREFIX.unpack(prefix)
    if magic != _MAGIC or version != KV_PROTOCOL_VERSION:
        raise ProtocolError(f"the peer does not speak version {KV_PROTOCOL_VERSION} of the KV protocol")
    if head_bytes > MAX_HEAD_BYTES:
        raise ProtocolError(f"the peer announced a frame head of {head_bytes} bytes, the limit is {MAX_HEAD_BYTES}")
    head = bytearray(head_bytes)
    receive_into(sock, [memoryview(head)])
    try:
        frame = _decoder.decode(head)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ProtocolError(f"the peer sent a frame that cannot be read: {error}") from error
    if payload_bytes and not frame.has_payload:
        raise ProtocolError(f"the peer sent {payload_bytes} bytes after a {type(frame).__name__} frame")
    return frame, payload_bytes


def receive_into(sock: socket.socket, views: Sequence[memoryview]) -> None:
    """Fill the views in order. ConnectionError if the stream ends before."""
    rest = list(views)
    while rest:
        count = sock.recvmsg_into(rest[:MAX_IO_VECTORS])[0]
        if count == 0:
            raise ConnectionError("the peer closed the connection")
        rest = advance(rest, count)


def receive_exactly(sock: socket.socket, num_bytes: int, deadline_s: float) -> bytes:
    """TimeoutError once `time.monotonic()` has passed the deadline, however often a little comes."""
    received = bytearray(num_bytes)
    rest = memoryview(received)
    while rest:
        left_s = deadline_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("the peer did not answer in time")
        sock.settimeout(left_s)
        count = sock.recv_into(rest)
        if count == 0:
            raise ConnectionError("the peer closed the connection")
        rest = rest[count:]
    return bytes(received)


def advance(views: list[memoryview], num_bytes: int) -> list[memoryview]:
    """What is left of `views` after their first `num_bytes` bytes."""
    for index, view in enumerate(views):
        if num_bytes < view.nbytes:
            return [view[num_bytes:], *views[index + 1 :]]
        num_bytes -= view.nbytes
    return []


def split_address(address: str) -> tuple[str, int]:
    """("host", port) of "tcp:host:port". ProtocolError if it is none."""
    kind, _, rest = address.partition(":")
    host, _, port = rest.rpartition(":")
    if kind != "tcp" or not host or not port.isdecimal():
        raise ProtocolError(f"{address!r} is not the address of a tcp transport (tcp:HOST:PORT)")
    return host.strip("[]"), int(port)


def tune(sock: socket.socket) -> None:
    """No delay for small frames; notice a peer that vanished without a word within about ten seconds.

    Buffer sizes are left to the kernel: over loopback, fixed ones of 4 MiB were measured no faster.
    """
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", 5),
        ("TCP_KEEPINTVL", 2),
        ("TCP_KEEPCNT", 3),
        ("TCP_USER_TIMEOUT", 10_000),  # ms
    ):
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
