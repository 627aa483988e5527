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
    groups = [(g.name, g.kind, g.num_layers, g.num_kv_heads, g.head_size) for g in layout.groups]
    facts = (layout.model_hash, layout.dtype, layout.block_size, groups, layout.tensor_parallel_size)
    return hashlib.blake2b(repr(facts).encode(), digest_size=DIGEST_BYTES).digest()


def check_layout(mine: KVLayout, theirs: KVLayout, peer: str) -> None:
    """Raise LayoutMismatch with one sentence that names the differing field and both values."""
    sentence = mine.mismatch(theirs)
    if sentence is not None:
        raise LayoutMismatch(f"{peer} is refused: {sentence}.")
