"""What a worker needs to hand over KV between boxes: where it listens, how others find it, and by what they are known.

The keys come from outside (`relevo.cluster.identity`, which this layer does not know). Inside a box there is no door:
workers listen on the loopback and prove to each other that they know the secret of their start.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from typing import Any, Protocol


class NodeKeys(Protocol):
    """The certificate of this node, and whom it lets in. Every method from any thread; refusals are `ProtocolError`."""

    @property
    def name(self) -> str: ...

    def server_context(self) -> ssl.SSLContext:
        """For the next connection that is taken: a certificate is asked for."""
        ...

    def client_context(self) -> ssl.SSLContext: ...

    def admit(self, tls: ssl.SSLObject, name: str | None) -> Any:
        """Who is there, after the handshake; `name`: the node that it has to be."""
        ...

    def check(self, peer: Any) -> None:
        """Whether one that was admitted still would be: it may have expired or been revoked."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class KVDoor:
    keys: NodeKeys
    host: str  # to listen at; "" or "::" for all addresses of both families
    ports: range  # the first free one is taken; range(0, 1): any
    advertised_host: str  # what others connect to
    encrypts: bool  # the bytes too; they are encrypted unless both ends say no
    num_streams: int = 4  # connections per pair at most; more than one only while there is much to send
