"""API keys: who may use the guarded paths, and which tenant a request belongs to.

Holds digests only, never a key. Keys that are made at run time are `gateway.metering.key_ring`'s.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from relevo.core.errors import Unauthorized

UNKNOWN_KEY = "The API key is not valid here."


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who a request is answered and billed to."""

    tenant: str = ""  # empty without keys; keys of one tenant may share cached prefixes
    key_id: str = ""  # empty without keys
    is_admin: bool = False  # may see the usage of every key, and drain workers
    best_priority: int = 0  # the least number its requests may ask for; below 0 is served before others


class Authenticator(Protocol):
    @property
    def is_open(self) -> bool:
        """True: no key is asked for."""
        ...

    def identify(self, headers: Mapping[str, str]) -> Caller:
        """The caller behind `Authorization: Bearer KEY` or `x-api-key: KEY`. Raises Unauthorized."""
        ...


@dataclass(frozen=True, slots=True)
class ApiKeys:
    """The SHA-256 digests (hex) of the keys that are accepted; empty means no key is asked for."""

    digests: tuple[str, ...] = ()
    best_priority: int = 0  # of each, and of every client where there are none

    @classmethod
    def of(cls, keys: Iterable[str]) -> ApiKeys:
        return cls(tuple(digest_of(key) for key in keys if key))

    @property
    def is_open(self) -> bool:
        return not self.digests

    def identify(self, headers: Mapping[str, str]) -> Caller:
        """Anonymous without keys; else tenant and key id are the beginning of the key's digest."""
        if not self.digests:
            return self.anonymous
        caller = self.find(presented_digest(headers))
        if caller is None:
            raise Unauthorized(UNKNOWN_KEY)
        return caller

    @property
    def anonymous(self) -> Caller:
        return Caller(best_priority=self.best_priority)

    def find(self, digest: str) -> Caller | None:
        """None if no key has that SHA-256 digest (hex)."""
        matches = [known for known in self.digests if hmac.compare_digest(known, digest)]  # no early exit
        if not matches:
            return None
        return Caller(tenant=digest[:16], key_id=digest[:16], best_priority=self.best_priority)

    def has(self, key_id: str) -> bool:
        """Whether one of these keys has this id."""
        return any(digest.startswith(key_id) for digest in self.digests)


def digest_of(key: str) -> str:
    """What is kept of a key. Keys are long and random, so a plain SHA-256 cannot be searched."""
    return hashlib.sha256(key.encode()).hexdigest()


def presented_digest(headers: Mapping[str, str]) -> str:
    """Raises Unauthorized when no key was sent."""
    key = presented_key(headers)
    if key is None:
        raise Unauthorized("No API key was given; send it as 'Authorization: Bearer KEY' or 'x-api-key: KEY'.")
    return digest_of(key)


def presented_key(headers: Mapping[str, str]) -> str | None:
    scheme, _, credentials = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and credentials.strip():
        return credentials.strip()
    return headers.get("x-api-key") or None
