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

Owns the messages and what they prove. Pure: no sockets, clocks or randomness; nonces come in. Does not hide or sign
what follows on the connection: an attacker who can change its bytes (root, a network between boxes) is not kept out.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from enum import IntEnum

from relevo.core.errors import ProtocolError
from relevo.core.ids import WorkerRef
from relevo.core.kv import KVRefusal

KV_PROTOCOL_VERSION = 2
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


class StaleTarget(ProtocolError):
    """The incarnation that a sender wanted to reach has been replaced; its rights have ended with it."""


class HandshakeRefused(Exception):
    """What a stranger sent proves nothing."""

    def __init__(self, reason: KVRefusal, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class SenderHandshake:
    """The sender's part: `opening`, then `proof` of the challenge, then `check` of the verdict."""

    def __init__(self, secret: bytes, target: WorkerRef, nonce: bytes) -> None:
        self._secret = checked_secret(secret)
        self._target = target
        self._nonce = nonce
        self._transcript = b""
        self.opening = _greeting(nonce)

    def proof(self, challenge: bytes) -> bytes:
        """ProtocolError if the peer is no receiver of this version."""
        nonce = _nonce_of(challenge)
        if nonce is None:
            raise ProtocolError(f"the peer does not speak version {KV_PROTOCOL_VERSION} of the KV protocol")
        target = _target_digest(self._target)
        self._transcript = self._nonce + nonce + target
        return target + _mac(self._secret, b"sender", self._transcript)

    def check(self, verdict: bytes) -> None:
        """Returns if the peer has proved that it is the target. StaleTarget, ProtocolError."""
        said, mac = verdict[:1], verdict[1:]
        if not hmac.compare_digest(mac, _mac(self._secret, b"receiver" + said, self._transcript)):
            raise ProtocolError("the receiver has not proved that it belongs to this server")
        if said[0] == Verdict.OTHER_INCARNATION:
            raise StaleTarget(f"{self._target.worker_id} of epoch {self._target.epoch} is not there any more")
        if said[0] != Verdict.ACCEPTED:
            raise ProtocolError("the receiver has no room for another sender")


class ReceiverHandshake:
    """The receiver's part: `challenge` for an opening, then `judge` a proof and answer with `verdict`."""

    def __init__(self, secret: bytes, own: WorkerRef, nonce: bytes) -> None:
        self._secret = checked_secret(secret)
        self._own = _target_digest(own)
        self._nonce = nonce
        self._transcript = b""
        self._senders_nonce = b""

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

    def verdict(self, verdict: Verdict) -> bytes:
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


def _target_digest(target: WorkerRef) -> bytes:
    return hashlib.sha256(f"{target.epoch}:{target.worker_id}".encode()).digest()


def _mac(secret: bytes, role: bytes, transcript: bytes) -> bytes:
    """The transcript has a fixed size, so role and transcript cannot run into each other."""
    return hmac.digest(secret, b"relevo kv %d " % KV_PROTOCOL_VERSION + role + b"\0" + transcript, "sha256")
