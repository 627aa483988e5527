"""Reasoning as a text that a client keeps and gives back: sealed, so that only what was written here is taken back.

It is authenticated and packed, not secret: the reasoning itself is shown beside it. A seal is good for one tenant.
Source: RFC 2104 (HMAC), with SHA-256.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import zlib
from dataclasses import dataclass

_START = "rv1."
_DIGEST_BYTES = 32


@dataclass(frozen=True, slots=True)
class Seal:
    key: bytes
    tenant: str = ""

    def close(self, text: str) -> str:
        packed = zlib.compress(text.encode(), 6)
        return _START + base64.urlsafe_b64encode(self._digest(packed) + packed).decode()

    def open(self, sealed: str) -> str | None:
        """None: it was not sealed with this key for this tenant, or was changed since."""
        if not sealed.startswith(_START):
            return None
        try:
            data = base64.urlsafe_b64decode(sealed.removeprefix(_START))
        except (binascii.Error, ValueError):
            return None
        digest, packed = data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]
        return zlib.decompress(packed).decode() if hmac.compare_digest(digest, self._digest(packed)) else None

    def _digest(self, packed: bytes) -> bytes:
        return hmac.new(self.key, self.tenant.encode() + b"\0" + packed, hashlib.sha256).digest()
