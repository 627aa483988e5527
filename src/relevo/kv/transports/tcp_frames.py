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
from relevo.kv.lent_blocks import LentBlocks
from relevo.kv.transports.tcp_channel import Channel
from relevo.kv.transports.tcp_handshake import KV_PROTOCOL_VERSION

_SCRATCH_BYTES = 64 * 1024
MAX_HEAD_BYTES = 4 * 1024 * 1024  # arbitrary; a head names a few hundred blocks
_MAGIC = b"RLKV"
_PREFIX = struct.Struct("<4sHHIQ")


class Frame(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Base of all frames. `has_payload` frames are followed by the bytes of their blocks, in order."""

    has_payload: ClassVar[bool] = False


class Connect(Frame, frozen=True, tag=True):
    """First frame of a stream after the handshake, from the sender; answered with Accepted or Rejected."""

    layout: KVLayout
    link_id: bytes = b""  # drawn; the same on all streams of one sender's link to this receiver


class Probe(Frame, frozen=True, tag=True):
    """Instead of Connect, or between writes: answered with as much payload as is asked for."""

    has_payload: ClassVar[bool] = True

    num_answer_bytes: int


class Probed(Frame, frozen=True, tag=True):
    has_payload: ClassVar[bool] = True


class Ping(Frame, frozen=True, tag=True):
    """Of a sender that has nothing to send; answered with Pong."""


class Pong(Frame, frozen=True, tag=True):
    pass


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
    """Answered once everything sent before it on this connection, and every ticket of the link below `after`, has been
    stored or refused. Names one open block."""

    ticket: int
    request_id: RequestId
    epoch: int
    index: int
    block_id: BlockId
    generation: int
    after: int = 0


class Applied(Frame, frozen=True, tag=True):
    ticket: int


class Refused(Frame, frozen=True, tag=True):
    ticket: int
    reason: str
    stale: bool


AnyFrame = Connect | Accepted | Rejected | WriteBlocks | Seal | Applied | Refused | Probe | Probed | Ping | Pong

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[AnyFrame] = msgspec.msgpack.Decoder(AnyFrame)


def send_frame(
    channel: Channel, frame: AnyFrame, payload: Sequence[memoryview] = (), blocks: LentBlocks | None = None
) -> None:
    """Blocks until the kernel has taken everything; block bytes are not copied in this process."""
    head = _encoder.encode(frame)
    payload_bytes = sum(view.nbytes for view in payload) + (0 if blocks is None else blocks.num_bytes)
    prefix = _PREFIX.pack(_MAGIC, KV_PROTOCOL_VERSION, 0, len(head), payload_bytes)
    channel.send([memoryview(prefix + head), *payload], blocks)


def receive_frame(channel: Channel) -> tuple[AnyFrame, int]:
    """(frame, payload bytes still to be read). ConnectionError at the end of the stream, ProtocolError on nonsense."""
    prefix = bytearray(_PREFIX.size)
    channel.receive_into([memoryview(prefix)])
    magic, version, _, head_bytes, payload_bytes = _PREFIX.unpack(prefix)
    if magic != _MAGIC or version != KV_PROTOCOL_VERSION:
        raise ProtocolError(f"the peer does not speak version {KV_PROTOCOL_VERSION} of the KV protocol")
    if head_bytes > MAX_HEAD_BYTES:
        raise ProtocolError(f"the peer announced a frame head of {head_bytes} bytes, the limit is {MAX_HEAD_BYTES}")
    head = bytearray(head_bytes)
    channel.receive_into([memoryview(head)])
    try:
        frame = _decoder.decode(head)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ProtocolError(f"the peer sent a frame that cannot be read: {error}") from error
    if payload_bytes and not frame.has_payload:
        raise ProtocolError(f"the peer sent {payload_bytes} bytes after a {type(frame).__name__} frame")
    return frame, payload_bytes


def skip_payload(channel: Channel, num_bytes: int) -> None:
    scratch = memoryview(bytearray(min(num_bytes, _SCRATCH_BYTES)))
    while num_bytes:
        piece = scratch[: min(num_bytes, len(scratch))]
        channel.receive_into([piece])
        num_bytes -= len(piece)


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


def tune(sock: socket.socket) -> None:
    """No delay for small frames; notice a peer that vanished without a word within about five seconds.

    Buffer sizes are left to the kernel: over loopback, fixed ones of 4 MiB were measured no faster.
    """
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", 2),
        ("TCP_KEEPINTVL", 1),
        ("TCP_KEEPCNT", 3),
        ("TCP_USER_TIMEOUT", 5_000),  # ms
    ):
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
