"""What a worker reads of tokens beside their number: which blocks have the same content, which ids no model knows.

One seam: a simulated worker serves prompts that are a length and names of content, never lists of tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

from relevo.core.ids import BlockHash, TokenId
from relevo.policy.worker.prefix_cache import ROOT_HASH, block_hash, chain


class TokenContent:
    """Tokens are what they are."""

    def joined(self, prompt: Sequence[TokenId], outputs: Sequence[TokenId]) -> list[TokenId]:
        """Prompt, then outputs; a list of its own, to which more outputs are appended."""
        return [*prompt, *outputs]

    def hashes(self, token_ids: Sequence[TokenId], block_size: int, salt: bytes) -> list[BlockHash]:
        """Of the full blocks, first to last."""
        return chain(token_ids, block_size, salt)

    def next_hash(
        self, hashes: Sequence[BlockHash], token_ids: Sequence[TokenId], block_size: int, salt: bytes
    ) -> BlockHash:
        """Of the full block of `token_ids` that follows those with `hashes`."""
        start = len(hashes) * block_size
        return block_hash(hashes[-1] if hashes else ROOT_HASH, token_ids[start : start + block_size], salt)

    def unknown_id(self, token_ids: Sequence[TokenId], vocab_size: int) -> TokenId | None:
        """One that a model of `vocab_size` tokens has no embedding for, if there is one."""
        for token_id in (min(token_ids), max(token_ids)) if token_ids else ():
            if not 0 <= token_id < vocab_size:
                return token_id
        return None


TOKENS = TokenContent()
