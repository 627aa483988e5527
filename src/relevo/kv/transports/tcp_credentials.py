"""By what the two ends of a KV connection know each other: the secret of one start, or the certificates of
two nodes (tcp_node_handshake)."""

from __future__ import annotations

import secrets
from typing import Any, Protocol

from relevo.core.errors import ProtocolError
from relevo.core.ids import WorkerRef
from relevo.kv.transports.tcp_handshake import (
    NONCE_BYTES,
    ReceiverHandshake,
    ReceiverSide,
    SenderHandshake,
    SenderSide,
    checked_secret,
)


class Credentials(Protocol):
    def as_sender(self, target: WorkerRef, node: str) -> SenderSide:
        """`node`: whose worker that is; "" inside a box."""
        ...

    def as_receiver(self, own: WorkerRef) -> ReceiverSide: ...

    def check(self, peer: Any) -> None:
        """ProtocolError once a peer that came in would come in no more."""
        ...


class SecretCredentials:
    def __init__(self, secret: bytes) -> None:
        self._secret = checked_secret(secret)

    def as_sender(self, target: WorkerRef, node: str) -> SenderSide:
        if node:
            raise ProtocolError(f"that worker is of node {node}, and this one of no cluster")
        return SenderHandshake(self._secret, target, secrets.token_bytes(NONCE_BYTES))

    def as_receiver(self, own: WorkerRef) -> ReceiverSide:
        return ReceiverHandshake(self._secret, own, secrets.token_bytes(NONCE_BYTES))

    def check(self, peer: Any) -> None:
        pass  # the secret ends with its start
