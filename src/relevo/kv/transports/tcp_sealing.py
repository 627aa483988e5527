"""Records: bytes of a connection, encrypted and authenticated, in an order that cannot be changed unnoticed.

    length u32 | ciphertext of that many bytes | tag of 16

AES-128-GCM. The nonce follows from the number of the record, which is never sent: a record that is missing, repeated,
out of place, cut or of another connection or direction has another number or key, and does not open. Keys are replaced
after a fixed number of records, by both ends alike, and follow from each other in one direction only.

Owns keys and numbers. Knows no sockets. Large pieces are worked on without the interpreter's lock.
"""

from __future__ import annotations

import struct

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

from relevo.core.errors import ProtocolError

HEADER = struct.Struct("<I")
TAG_BYTES = 16
SECRET_BYTES = 32
MAX_RECORD_BYTES = 256 * 1024  # arbitrary; stays in a core's cache between the kernel's copy and the cipher
RECORDS_PER_KEY = 2**22  # required to be below 2^32 (NIST SP 800-38D); with 256 KiB each, a terabyte
_KEY_BYTES, _NONCE_BYTES = 16, 12


class RecordKeys:
    """Of one direction of one connection. For one thread."""

    def __init__(self, secret: bytes, records_per_key: int = RECORDS_PER_KEY) -> None:
        if len(secret) != SECRET_BYTES:
            raise ValueError(f"a secret of {SECRET_BYTES} bytes is needed, not of {len(secret)}")
        self._secret = secret
        self._records_per_key = records_per_key
        self._begin()

    def seal(self, piece: memoryview | bytes, into: memoryview) -> int:
        """Write the record of `piece` to the front of `into`; returns its size, `record_bytes(len(piece))`."""
        size = len(piece)
        if not 0 < size <= MAX_RECORD_BYTES:
            raise ValueError(f"a record holds 1 to {MAX_RECORD_BYTES} bytes, not {size}")
        header = HEADER.pack(size)
        end = HEADER.size + size + TAG_BYTES
        into[: HEADER.size] = header
        nonce = self._next_nonce()
        self._cipher.encrypt_into(nonce, piece, header, into[HEADER.size : end])
        return end

    def open(self, sealed: memoryview, into: memoryview) -> None:
        """Write what ciphertext and tag hold to `into`, of their size less the tag. ProtocolError if they are not the
        next record of this direction; `into` holds nothing of use then."""
        nonce = self._next_nonce()
        try:
            self._cipher.decrypt_into(nonce, sealed, HEADER.pack(len(into)), into)
        except InvalidTag:
            raise ProtocolError("a record was changed, repeated or lost on its way") from None

    def _next_nonce(self) -> bytes:
        if self._number == self._records_per_key:
            self._secret = _expand(self._secret, b"next", SECRET_BYTES)
            self._begin()
        nonce = (self._mask ^ self._number).to_bytes(_NONCE_BYTES, "big")
        self._number += 1
        return nonce

    def _begin(self) -> None:
        self._cipher = AESGCM(_expand(self._secret, b"key", _KEY_BYTES))
        self._mask = int.from_bytes(_expand(self._secret, b"nonce", _NONCE_BYTES), "big")
        self._number = 0


def record_bytes(size: int) -> int:
    """On the wire, of a piece of that size."""
    return HEADER.size + size + TAG_BYTES


def checked_size(header: bytes | bytearray | memoryview) -> int:
    """What a header announces; ProtocolError for nothing or too much. It is authenticated with its record."""
    (size,) = HEADER.unpack(header)
    if not 0 < size <= MAX_RECORD_BYTES:
        raise ProtocolError(f"the peer announced a record of {size} bytes, the limit is {MAX_RECORD_BYTES}")
    return int(size)


def direction_secrets(senders_random: bytes, receivers_random: bytes) -> tuple[bytes, bytes]:
    """(of what the sender sends, of what the receiver sends), from what both told each other inside TLS."""
    shared = senders_random + receivers_random
    return _expand(shared, b"sender", SECRET_BYTES), _expand(shared, b"receiver", SECRET_BYTES)


def _expand(secret: bytes, purpose: bytes, num_bytes: int) -> bytes:
    return HKDFExpand(SHA256(), num_bytes, b"relevo kv record " + purpose).derive(secret)
