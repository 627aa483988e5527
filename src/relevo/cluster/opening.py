"""The first words on a connection between nodes: what it is for, and whether it may be.

One connection has one purpose. After `Opened` the frames are the purpose's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import msgspec

from relevo.cluster.peer import NodeRole, Refusal
from relevo.wire.framing import MAX_FRAME_BYTES, FrameDecoder

STREAM_VERSION = 1  # of these words


class Purpose(StrEnum):
    AUTHORITY = "authority"  # the authority's certificate, which the one who asks compares with a fingerprint
    ENROL = "enrol"  # a token and a request for a certificate
    RENEW = "renew"  # the next certificate
    MEMBER = "member"  # who is there, in snapshots and changes
    HEARTBEAT = "heartbeat"
    LINK = "link"  # a gateway and a worker of this node
    MOVE = "move"  # what another connection began goes on over this one
    PROBE = "probe"  # what the way between two nodes can carry
    ADMIN = "admin"


@dataclass(frozen=True, slots=True, kw_only=True)
class PurposeRule:
    """Who may open such a connection, and what may come over it."""

    is_for_strangers: bool = False  # without a certificate, too
    caller: NodeRole | None = None  # None: any node
    max_frame_bytes: int = 16 * 1024


RULES = {
    Purpose.AUTHORITY: PurposeRule(is_for_strangers=True),
    Purpose.ENROL: PurposeRule(is_for_strangers=True),
    Purpose.RENEW: PurposeRule(),
    Purpose.MEMBER: PurposeRule(max_frame_bytes=MAX_FRAME_BYTES),
    Purpose.HEARTBEAT: PurposeRule(),
    Purpose.LINK: PurposeRule(caller=NodeRole.HEAD, max_frame_bytes=MAX_FRAME_BYTES),
    Purpose.MOVE: PurposeRule(),  # of what this node has opened itself
    Purpose.PROBE: PurposeRule(max_frame_bytes=4 * 1024 * 1024),
    Purpose.ADMIN: PurposeRule(caller=NodeRole.HEAD, max_frame_bytes=1024 * 1024),
}
MAX_OPENING_BYTES = 4096  # arbitrary; all that a stranger may send before it is known


class Opening(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """From the one who connects. `about`: the purpose's own message, empty where it needs none. `stream_id`: drawn by
    the one who connects, by which the two may speak of this connection over another one."""

    purpose: str
    about: bytes = b""
    stream_id: str = ""
    version: int = STREAM_VERSION


class Opened(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The other end has looked at the certificate and takes this."""


class Refused(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """`reason`: a `peer.Refusal`. Nothing follows."""

    reason: str
    message: str


OPENING: msgspec.msgpack.Decoder[Opening] = msgspec.msgpack.Decoder(Opening)
ANSWER: msgspec.msgpack.Decoder[Opened | Refused] = msgspec.msgpack.Decoder(Opened | Refused)


def any_frames(max_frame_bytes: int) -> FrameDecoder[msgspec.Raw]:
    """Frames that are read later, by what knows their types."""
    return FrameDecoder(msgspec.msgpack.Decoder(msgspec.Raw), max_frame_bytes)


def refusal_of(reason: str) -> Refusal:
    return Refusal(reason) if reason in list(Refusal) else Refusal.PROTOCOL
