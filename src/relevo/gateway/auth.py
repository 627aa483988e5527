"""API keys: who may use the guarded paths, and which tenant a request belongs to.

Holds digests only, never a key. Does not know where keys come from.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from relevo.core.errors import Unauthorized

GUARDED_PATHS = ("/v1", "/tokenize", "/detokenize")


def is_guarded(path: str) -> bool:
    """True for paths that need a key once keys are configured; health and metrics stay open to probes."""
    return any(path == guarded or path.startswith(guarded + "/") for guarded in GUARDED_PATHS)


@dataclass(frozen=True, slots=True)
class ApiKeys:
    """The SHA-256 digests (hex) of the keys that are accepted; empty means no key is asked for."""

    digests: tuple[str, ...] = ()

    @classmethod
    def of(cls, keys: Iterable[str]) -> ApiKeys:
        return cls(tuple(hashlib.sha256(key.encode()).hexdigest() for key in keys if key))

    def tenant(self, headers: Mapping[str, str]) -> str:
        """The tenant a request belongs to: empty without keys, else named after the key's digest.

        Accepts `Authorization: Bearer KEY` and `x-api-key: KEY`. Raises Unauthorized.
        """
        if not self.digests:
            return ""
        key = presented_key(headers)
        if key is None:
            raise Unauthorized("No API key was given; send it as 'Authorization: Bearer KEY' or 'x-api-key: KEY'.")
        digest = hashlib.sha256(key.encode()).hexdigest()
        matches = [known for known in self.digests if hmac.compare_digest(known, digest)]  # no early exit
        if not matches:
            raise Unauthorized("The API key is not valid here.")
        return digest[:16]


def presented_key(headers: Mapping[str, str]) -> str | None:
    scheme, _, credentials = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and credentials.strip():
        return credentials.strip()
    return headers.get("x-api-key") or None
