"""How two boxes begin a KV connection: TLS 1.3 with the certificates of both nodes; inside it, who is wanted, and keys.

    sender                              receiver
      TLS 1.3, both certificates  ◄─►
      wish: target, may it be plain, random  ──►
                                  ◄──  verdict, may it be plain, random

After the verdict TLS is over: the connection goes on with frames of our own, encrypted under keys that follow from both
randoms unless **both** ends said that they may travel plain. So an end that encrypts is never talked out of it.

The sender looks at whose certificate it is shown: that of the node whose worker granted the room. Owns what is said
inside TLS. Knows no sockets: records come in whole, so that no byte behind the handshake is ever read by it.
"""

from __future__ import annotations

import ssl
import struct
from collections.abc import Callable
from secrets import token_bytes
from typing import Any

from relevo.core.errors import ProtocolError
from relevo.core.ids import WorkerRef
from relevo.core.kv import KVRefusal
from relevo.kv.door import KVDoor, NodeKeys
from relevo.kv.transports.tcp_handshake import (
    KV_PROTOCOL_VERSION,
    HandshakeRefused,
    Session,
    Verdict,
    target_digest,
    told_apart,
)
from relevo.kv.transports.tcp_sealing import SECRET_BYTES, direction_secrets

_RECORD_HEAD = 5  # type, version, length u16
_MAX_RECORD = 16 * 1024 + 256  # RFC 8446, 5.2
MAX_HANDSHAKE_BYTES = 64 * 1024  # arbitrary; of one side. Two certificates of a node are below 4 KiB
_MAGIC = b"RLKV"
_WISH = struct.Struct(f"<4sHB32s{SECRET_BYTES}s")
_ANSWER = struct.Struct(f"<4sHBB{SECRET_BYTES}s")


class NodeCredentials:
    """tcp_credentials.Credentials."""

    def __init__(self, door: KVDoor) -> None:
        self._keys, self._encrypts = door.keys, door.encrypts

    def as_sender(self, target: WorkerRef, node: str) -> NodeSenderHandshake:
        if not node:
            raise ProtocolError("that worker shows no certificate of a node, and this one is of a cluster")
        home = target.worker_id.rpartition("/")[0]
        if home and home != node:
            raise ProtocolError(f"a worker of node {home} does not receive at node {node}")
        return NodeSenderHandshake(self._keys, node, target, token_bytes(SECRET_BYTES), encrypts=self._encrypts)

    def as_receiver(self, own: WorkerRef) -> NodeReceiverHandshake:
        return NodeReceiverHandshake(self._keys, own, token_bytes(SECRET_BYTES), encrypts=self._encrypts)

    def check(self, peer: Any) -> None:
        self._keys.check(peer)


class _TlsEnd:
    """TLS between two buffers."""

    def __init__(self, context: ssl.SSLContext, *, server_side: bool) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self._incoming, self._outgoing, server_side=server_side)
        self._num_bytes = 0
        self._is_through = False
        self._said = bytearray()

    def shake(self) -> bool:
        """Whether the handshake is over. ssl.SSLError."""
        if not self._is_through:
            try:
                self.tls.do_handshake()
            except ssl.SSLWantReadError:
                return False
            self._is_through = True
        return True

    def take(self, record: bytes) -> None:
        self._num_bytes += len(record)
        self._incoming.write(record)

    def is_too_long(self) -> bool:
        return self._num_bytes > MAX_HANDSHAKE_BYTES

    def hear(self, size: int) -> bytes | None:
        """What the peer says inside TLS, once it is whole."""
        while len(self._said) < size:
            try:
                said = self.tls.read(size - len(self._said))
            except ssl.SSLWantReadError:
                return None
            if not said:
                raise ssl.SSLEOFError("the peer ended TLS")
            self._said += said
        return bytes(self._said)

    def to_send(self) -> bytes:
        return self._outgoing.read()


class NodeSenderHandshake:
    """tcp_handshake.SenderSide."""

    def __init__(self, keys: NodeKeys, node: str, target: WorkerRef, random: bytes, *, encrypts: bool) -> None:
        self._keys, self._node, self._target = keys, node, target
        self._random, self._encrypts = random, encrypts
        self._end = _TlsEnd(keys.client_context(), server_side=False)
        self._peer: Any = None
        self.session: Session | None = None
        self._end.shake()
        self.opening = self._end.to_send()

    def size_of(self, received: bytes | bytearray) -> int:
        return record_size(received)

    def take(self, message: bytes) -> bytes:
        self._end.take(message)
        if self._end.is_too_long():
            raise ProtocolError("the peer says more than a handshake needs")
        try:
            if self._end.shake():
                self._go_on()
        except ssl.SSLError as error:
            raise ProtocolError(f"the two nodes do not accept each other's certificates ({_words(error)})") from error
        return self._end.to_send()

    def _go_on(self) -> None:
        if self._peer is None:
            self._peer = self._keys.admit(self._end.tls, self._node)
            digest = target_digest(self._target)
            self._end.tls.write(_WISH.pack(_MAGIC, KV_PROTOCOL_VERSION, self._encrypts, digest, self._random))
        answer = self._end.hear(_ANSWER.size)
        if answer is None:
            return
        magic, version, verdict, encrypts, random = _ANSWER.unpack(answer)
        if (magic, version) != (_MAGIC, KV_PROTOCOL_VERSION):
            raise ProtocolError(f"the peer does not speak version {KV_PROTOCOL_VERSION} of the KV protocol")
        told_apart(verdict, self._target)
        secrets = direction_secrets(self._random, random) if encrypts or self._encrypts else None
        self.session = Session(self._peer, secrets)


class NodeReceiverHandshake:
    """tcp_handshake.ReceiverSide."""

    def __init__(self, keys: NodeKeys, own: WorkerRef, random: bytes, *, encrypts: bool) -> None:
        self._keys, self._own = keys, target_digest(own)
        self._random, self._encrypts = random, encrypts
        self._end = _TlsEnd(keys.server_context(), server_side=True)
        self.verdict: Verdict | None = None
        self.session = Session()

    @property
    def farewell(self) -> bytes:
        """What TLS says to one that it refuses."""
        return self._end.to_send()

    def size_of(self, received: bytes | bytearray) -> int:
        try:
            return record_size(received)
        except ProtocolError as error:
            raise HandshakeRefused(KVRefusal.PROTOCOL, error.message) from error

    def take(self, message: bytes, has_room: Callable[[], bool]) -> bytes:
        self._end.take(message)
        if self._end.is_too_long():
            raise HandshakeRefused(KVRefusal.PROTOCOL, "it says more than a handshake needs")
        try:
            wish = self._end.hear(_WISH.size) if self._end.shake() else None
        except ssl.SSLError as error:
            is_certificate = isinstance(error, ssl.SSLCertVerificationError) or "CERTIFICATE" in str(error.reason)
            reason = KVRefusal.CERTIFICATE if is_certificate else KVRefusal.PROTOCOL
            raise HandshakeRefused(reason, f"it came through no TLS handshake ({_words(error)})") from error
        if wish is None:
            return self._end.to_send()
        magic, version, encrypts, target, random = _WISH.unpack(wish)
        if (magic, version) != (_MAGIC, KV_PROTOCOL_VERSION):
            raise HandshakeRefused(
                KVRefusal.PROTOCOL, f"it does not speak version {KV_PROTOCOL_VERSION} of the KV protocol"
            )
        self.verdict = self._judge(target, has_room)
        if encrypts or self._encrypts:
            sent, received = direction_secrets(random, self._random)
            self.session = Session(self.session.peer, (received, sent))
        answer = _ANSWER.pack(_MAGIC, KV_PROTOCOL_VERSION, self.verdict, self._encrypts, self._random)
        self._end.tls.write(answer)
        return self._end.to_send()

    def _judge(self, target: bytes, has_room: Callable[[], bool]) -> Verdict:
        try:
            self.session = Session(self._keys.admit(self._end.tls, None))
        except ProtocolError:
            return Verdict.NOT_ADMITTED
        if target != self._own:
            return Verdict.OTHER_INCARNATION
        return Verdict.ACCEPTED if has_room() else Verdict.BUSY


def record_size(received: bytes | bytearray) -> int:
    """Of the TLS record that begins so. ProtocolError for what is none."""
    if len(received) < _RECORD_HEAD:
        return _RECORD_HEAD
    size = int.from_bytes(received[3:5], "big")
    if not 20 <= received[0] <= 23 or received[1] != 3 or size > _MAX_RECORD:
        raise ProtocolError("the peer does not speak TLS")
    return _RECORD_HEAD + size


def _words(error: ssl.SSLError) -> str:
    return str(getattr(error, "verify_message", "") or error.reason or "it ended").lower().replace("_", " ")
