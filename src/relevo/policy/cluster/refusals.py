"""Why nodes do not talk to each other: reasons that messages carry and metrics count."""

from __future__ import annotations

from enum import StrEnum


class Refusal(StrEnum):
    """Why a connection between nodes was not made, or ended."""

    PROTOCOL = "protocol"  # it does not speak TLS 1.3, or then not ours
    CERTIFICATE = "certificate"  # none where one is needed, or of another authority
    EXPIRED = "expired"  # or not valid yet
    REVOKED = "revoked"
    NAME = "name"  # it is another node than the one that was meant
    ROLE = "role"  # a node where a head is needed
    TOKEN = "token"  # unknown, used, expired, or not for this
    TIMEOUT = "timeout"  # it did not say in time what it wants
    LIMIT = "limit"  # too many were there
    INCARNATION = "incarnation"  # it wanted a worker, or an incarnation of the node, that is gone
