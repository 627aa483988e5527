"""Decides whether the KV blocks of a peer may be used here, and says so in one sentence.

Owns: the digest of a layout and the refusal. Does not know where the peer's layout came from (a header in shared
memory, a connection's first frame).
"""

from __future__ import annotations

import hashlib

from relevo.core.errors import LayoutMismatch
from relevo.core.kv import KVLayout

DIGEST_BYTES = 16


def layout_digest(layout: KVLayout) -> bytes:
    """16 bytes that are equal exactly when two layouts fit each other, over processes and machines."""
    return hashlib.blake2b(repr(layout).encode(), digest_size=DIGEST_BYTES).digest()


def check_layout(mine: KVLayout, theirs: KVLayout, peer: str) -> None:
    """Raise LayoutMismatch with one sentence that names the differing field and both values."""
    sentence = mine.mismatch(theirs)
    if sentence is not None:
        raise LayoutMismatch(f"{peer} is refused: {sentence}.")
