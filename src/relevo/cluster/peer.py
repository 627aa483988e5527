"""Who is at the other end of a connection, as its certificate says, and why one is not let in.

A certificate names the node, its role and its **enrolment** in three URIs. An enrolment is what one join token began:
renewed certificates keep it, a new token begins another, and it is what is revoked. Reads what OpenSSL has verified;
needs no other library, so that every process may use it.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from relevo.core.errors import ProtocolError
from relevo.policy.cluster.lifetimes import BACKDATED_S, Validity
from relevo.policy.cluster.refusals import Refusal as Refusal  # what is said with it

NODE_URI, ROLE_URI, ENROLMENT_URI = "relevo-node:", "relevo-role:", "relevo-enrolment:"
NAME_RULE = "a name has 1 to 63 letters, digits, dots, dashes and underscores, and begins with a letter or digit"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_ENROLMENT = re.compile(r"[0-9a-f]{32}")


class NodeRole(StrEnum):
    """What a node may do. A head speaks for gateways: it may reach the workers of every node."""

    HEAD = "head"
    NODE = "node"


class PeerRefused(ProtocolError):
    """One of the two ends does not let the other in. `reason`: what kind; the message is one sentence."""

    def __init__(self, reason: Refusal, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """A node, as the authority of its cluster has signed."""

    name: str
    role: NodeRole
    enrolment_id: str
    validity: Validity


def is_node_name(text: str) -> bool:
    return _NAME.fullmatch(text) is not None


def peer_of(ssl_object: ssl.SSLObject | ssl.SSLSocket) -> Peer | None:
    """None: it has shown no certificate. Raises PeerRefused for one that is of no node."""
    found: Mapping[str, Any] | None = ssl_object.getpeercert()
    return peer_of_certificate(found) if found else None


def peer_of_certificate(found: Mapping[str, Any]) -> Peer:
    """`found`: as `ssl.SSLObject.getpeercert` gives it, of a certificate that was verified."""
    uris = [str(value) for kind, value in found.get("subjectAltName", ()) if kind == "URI"]
    name, role, enrolment_id = (_only(uris, prefix) for prefix in (NODE_URI, ROLE_URI, ENROLMENT_URI))
    if not is_node_name(name) or role not in list(NodeRole) or not _ENROLMENT.fullmatch(enrolment_id):
        raise PeerRefused(Refusal.CERTIFICATE, "its certificate is not that of a node of this cluster")
    validity = Validity(
        issued_at_s=ssl.cert_time_to_seconds(found["notBefore"]) + BACKDATED_S,
        expires_at_s=ssl.cert_time_to_seconds(found["notAfter"]),
    )
    return Peer(name=name, role=NodeRole(role), enrolment_id=enrolment_id, validity=validity)


def _only(uris: list[str], prefix: str) -> str:
    values = [uri.removeprefix(prefix) for uri in uris if uri.startswith(prefix)]
    return values[0] if len(values) == 1 else ""
