"""Every message between gateways over the same workers; frames as between gateway and worker.

Each gateway listens; a gateway that connects begins with one of two things. `Follow`: from then on it is told what the
listener has under way, first a snapshot per model. `Ask`: it gets one `Answer`, and the connection ends.
"""

from __future__ import annotations

import msgspec

from relevo.policy.routing.gossip import Batch
from relevo.wire.framing import FrameDecoder
from relevo.wire.messages import Message


class Follow(Message, frozen=True, tag=True):
    pass


class Ask(Message, frozen=True, tag=True):
    about: str  # a question that every gateway of this release can answer


class Told(Message, frozen=True, tag=True):
    model: str  # served name
    batch: Batch


class Taken(Message, frozen=True, tag=True):
    """Tokens of their minute that API keys took since the last such message; negative: gave back."""

    num_tokens_by_key: dict[str, int]


class Ended(msgspec.Struct, frozen=True, array_like=True):
    """A request of a key with a budget; its row comes to the ledger."""

    key_id: str
    ended_at_ms: int  # Unix
    cost: str  # decimal text


class Spending(Message, frozen=True, tag=True):
    """Of API keys with a budget: what requests that run have used up to now, by key, where that changed; and requests
    that ended since the last such message."""

    running_by_key: dict[str, str]
    ended: tuple[Ended, ...] = ()


class Answer(Message, frozen=True, tag=True):
    body: bytes


MAX_QUESTION_BYTES = 256  # arbitrary; what a listener says is a word
ToGossipSource = Follow | Ask
ToListener = Told | Taken | Spending | Answer
_to_source: msgspec.msgpack.Decoder[ToGossipSource] = msgspec.msgpack.Decoder(ToGossipSource)
_to_listener: msgspec.msgpack.Decoder[ToListener] = msgspec.msgpack.Decoder(ToListener)


def source_side_decoder() -> FrameDecoder[ToGossipSource]:
    return FrameDecoder(_to_source, MAX_QUESTION_BYTES)


def listener_side_decoder() -> FrameDecoder[ToListener]:
    return FrameDecoder(_to_listener)
