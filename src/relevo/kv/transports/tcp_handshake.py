"""How the two ends of a KV connection prove to each other that they belong to one start of one server.

    sender                              receiver
      magic, version, nonce      ──►                       opening
                                 ◄──  magic, version, nonce   challenge
      digest of target, MAC      ──►                       proof
                                 ◄──  verdict, MAC            verdict

MACs are HMAC-SHA256 under the secret that all workers of one start share, over the role of who speaks, both nonces and
the incarnation that the sender wants to reach: a proof fits one connection, one direction and one incarnation, so it
can be neither replayed, nor reflected, nor passed on to another worker. The receiver says nothing that depends on the
secret before the sender has proved that it knows it. Every message has a fixed size; no byte of a stranger is parsed.

Owns the messages and what they prove, and the words that it shares with the handshake between boxes
(tcp_node_handshake). Pure: no sockets, clocks or randomness; nonces come in. Does not hide or sign what follows on the
connection: inside a box only root can change its bytes.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Protocol

from relevo.core.errors import ProtocolError
from relevo.core.ids import WorkerRef
from relevo.core.kv import KVRefusal

KV_PROTOCOL_VERSION = 4
MIN_SECRET_BYTES = 16  # required: 128 bits cannot be guessed
NONCE_BYTES = 32  # required: never drawn twice
_DIGEST_BYTES = 32
_GREETING = struct.Struct(f"<4sHH{NONCE_BYTES}s")  # opening, challenge
_MAGIC = b"RLKV"

OPENING_BYTES = CHALLENGE_BYTES = _GREETING.size
PROOF_BYTES = 2 * _DIGEST_BYTES
VERDICT_BYTES = 1 + _DIGEST_BYTES


class Verdict(IntEnum):
    """What a receiver tells a sender that knows the secret."""

    ACCEPTED = 0
    OTHER_INCARNATION = 1
    BUSY = 2
    NOT_ADMITTED = 3  # between boxes: its certificate has expired or was revoked


class StaleTarget(ProtocolError):
    """The incarnation that a sender wanted to reach has been replaced; its rights have ended with it."""


class HandshakeRefused(Exception):
    """What a stranger sent proves nothing."""

    def __init__(self, reason: KVRefusal, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Session:
    """What a handshake came to."""

    peer: Any = None  # of another box: as `NodeKeys.admit` told; None: a worker of this start
    secrets: tuple[bytes, bytes] | None = None  # (of what is sent here, of what is received); None: bytes travel plain


class SenderSide(Protocol):
    """Send `opening`; then read messages of `size_of` what there is of them, and send what `take` answers, until there
    is a session. `take` raises ProtocolError (StaleTarget: the incarnation is gone)."""

    opening: bytes
    session: Session | None

    def size_of(self, received: bytes | bytearray) -> int: ...

    def take(self, message: bytes) -> bytes: ...


class ReceiverSide(Protocol):
    """Read messages of `size_of` what there is of them, send what `take` answers, until there is a verdict. `take`
    raises HandshakeRefused, after which `farewell` may be sent."""

    verdict: Verdict | None
    session: Session

    @property
    def farewell(self) -> bytes: ...

    def size_of(self, received: bytes | bytearray) -> int: ...

    def take(self, message: bytes, has_room: Callable[[], bool]) -> bytes: ...


class SenderHandshake:
    """The sender's part: `opening`, then `proof` of the challenge, then `check` of the verdict."""

    session: Session | None = None

    def __init__(self, secret: bytes, target: WorkerRef, nonce: bytes) -> None:
        self._secret = checked_secret(secret)
        self._target = target
        self._nonce = nonce
        self._transcript = b""
        self.opening = _greeting(nonce)

    def size_of(self, received: bytes | bytearray) -> int:
        return VERDICT_BYTES if self._transcript else CHALLENGE_BYTES

    def take(self, message: bytes) -> bytes:
        if not self._transcript:
            return self.proof(message)
        self.check(message)
        self.session = Session()
        return b""

    def proof(self, challenge: bytes) -> bytes:
        """ProtocolError if the peer is no receiver of this version."""
        nonce = _nonce_of(challenge)
        if nonce is None:
            raise ProtocolError(f"the peer does not speak version {KV_PROTOCOL_VERSION} of the KV protocol")
        target = target_digest(self._target)
        self._transcript = self._nonce + nonce + target
        return target + _mac(self._secret, b"sender", self._transcript)

    def check(self, verdict: bytes) -> None:
        """Returns if the peer has proved that it is the target. StaleTarget, ProtocolError."""
        said, mac = verdict[:1], verdict[1:]
        if not hmac.compare_digest(mac, _mac(self._secret, b"receiver" + said, self._transcript)):
            raise ProtocolError("the receiver has not proved that it belongs to this server")
        told_apart(said[0], self._target)


def told_apart(verdict: int, target: WorkerRef) -> None:
    """Returns if a sender was accepted; else StaleTarget or ProtocolError."""
    if verdict == Verdict.OTHER_INCARNATION:
        raise StaleTarget(f"{target.worker_id} of epoch {target.epoch} is not there any more")
    if verdict == Verdict.NOT_ADMITTED:
        raise ProtocolError("the receiver does not let this node in: its certificate has expired or was revoked")
    if verdict != Verdict.ACCEPTED:
        raise ProtocolError("the receiver has no room for another sender")


class ReceiverHandshake:
    """The receiver's part: `challenge` for an opening, then `judge` a proof and answer with its verdict."""

    farewell = b""
    session = Session()

    def __init__(self, secret: bytes, own: WorkerRef, nonce: bytes) -> None:
        self.verdict: Verdict | None = None
        self._secret = checked_secret(secret)
        self._own = target_digest(own)
        self._nonce = nonce
        self._transcript = b""
        self._senders_nonce = b""

    def size_of(self, received: bytes | bytearray) -> int:
        return PROOF_BYTES if self._senders_nonce else OPENING_BYTES

    def take(self, message: bytes, has_room: Callable[[], bool]) -> bytes:
        if not self._senders_nonce:
            return self.challenge(message)
        judged = self.judge(message)
        self.verdict = Verdict.BUSY if judged is Verdict.ACCEPTED and not has_room() else judged
        return self.told(self.verdict)

    def challenge(self, opening: bytes) -> bytes:
        """HandshakeRefused for anything but the opening of this version."""
        nonce = _nonce_of(opening)
        if nonce is None:
            raise HandshakeRefused(
                KVRefusal.PROTOCOL, f"it does not speak version {KV_PROTOCOL_VERSION} of the KV protocol"
            )
        self._senders_nonce = nonce
        return _greeting(self._nonce)

    def judge(self, proof: bytes) -> Verdict:
        """Of a sender that knows the secret; HandshakeRefused of any other."""
        target, mac = proof[:_DIGEST_BYTES], proof[_DIGEST_BYTES:]
        self._transcript = self._senders_nonce + self._nonce + target
        if not hmac.compare_digest(mac, _mac(self._secret, b"sender", self._transcript)):
            raise HandshakeRefused(KVRefusal.SECRET, "it does not know the secret of this server")
        return Verdict.ACCEPTED if hmac.compare_digest(target, self._own) else Verdict.OTHER_INCARNATION

    def told(self, verdict: Verdict) -> bytes:
        said = bytes((verdict,))
        return said + _mac(self._secret, b"receiver" + said, self._transcript)


def checked_secret(secret: bytes) -> bytes:
    """ValueError if it could be guessed."""
    if len(secret) < MIN_SECRET_BYTES:
        raise ValueError(f"a KV secret of {len(secret)} bytes can be guessed; give at least {MIN_SECRET_BYTES}")
    return secret


def _greeting(nonce: bytes) -> bytes:
    return _GREETING.pack(_MAGIC, KV_PROTOCOL_VERSION, 0, nonce)


def _nonce_of(greeting: bytes) -> bytes | None:
    magic, version, _, nonce = _GREETING.unpack(greeting)
    return bytes(nonce) if (magic, version) == (_MAGIC, KV_PROTOCOL_VERSION) else None


def target_digest(target: WorkerRef) -> bytes:
    return hashlib.sha256(f"{target.epoch}:{target.worker_id}".encode()).digest()


def _mac(secret: bytes, role: bytes, transcript: bytes) -> bytes:
    """The transcript has a fixed size, so role and transcript cannot run into each other."""
    return hmac.digest(secret, b"relevo kv %d " % KV_PROTOCOL_VERSION + role + b"\0" + transcript, "sha256")
