"""Prompts without tokens: a length, and names of content from which blocks get their hashes.

Twelve thousand requests of a production hour hold 144 million tokens; what schedulers and routers read of them is how
many there are and which of their blocks are the same. Owns the names of one world. Two texts have equal hashes as far
as they begin with the same ids; what lies beyond a text's ids is shared with no other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast, overload

from relevo.core.ids import BlockHash, TokenId
from relevo.policy.worker.content import TokenContent

_ID_BYTES = 8


class Texts:
    """Makes the texts of one world."""

    def __init__(self) -> None:
        self._keys: dict[tuple[bytes, int], bytes] = {}  # of a prefix, by the prefix before it and the id that follows
        self._num_keys = 0

    def text(self, ids: Sequence[int] = (), ids_block_size: int = 0, salt: bytes = b"") -> Text:
        """`ids[i]` names tokens [i * ids_block_size, (i + 1) * ids_block_size)."""
        return Text(self, ids, ids_block_size, salt)

    def key(self, parent: bytes, content_id: int) -> bytes:
        known = self._keys.get((parent, content_id))
        if known is None:
            known = self._keys[parent, content_id] = self.new_key()
        return known

    def new_key(self) -> bytes:
        self._num_keys += 1
        return self._num_keys.to_bytes(_ID_BYTES, "big")


class Text:
    """What one request and its answer say."""

    __slots__ = ("_block_size", "_hashes", "_ids", "_ids_block_size", "_own", "_prefix_keys", "_texts")

    def __init__(self, texts: Texts, ids: Sequence[int], ids_block_size: int, salt: bytes) -> None:
        self._texts = texts
        self._ids = ids
        self._ids_block_size = ids_block_size
        self._own: bytes = b""  # of what follows the ids
        self._prefix_keys: list[bytes] = [salt]  # of the first 0, 1, 2 ... ids
        self._block_size = 0
        self._hashes: list[BlockHash] = []

    def hashes(self, num_blocks: int, block_size: int) -> list[BlockHash]:
        """Of the first blocks; a list of its own."""
        if block_size != self._block_size:
            self._block_size, self._hashes = block_size, []
        known = self._hashes
        while len(known) < num_blocks:
            known.append(self._hash(len(known)))
        return known[:num_blocks]

    def _hash(self, index: int) -> BlockHash:
        """Of blocks as large as the ids' those ids' keys; of others the key of the last id in them and their place."""
        size, ids_size = self._block_size, self._ids_block_size
        end = (index + 1) * size
        num_ids = -(-end // ids_size) if ids_size else 0
        if not num_ids or num_ids > len(self._ids):
            self._own = self._own or self._texts.new_key()
            return self._own + index.to_bytes(4, "big")
        keys = self._prefix_keys
        while len(keys) <= num_ids:
            keys.append(self._texts.key(keys[-1], self._ids[len(keys) - 1]))
        return keys[num_ids] if size == ids_size else keys[num_ids] + index.to_bytes(4, "big")


class VirtualTokens(Sequence[TokenId]):
    """A number of tokens of a text. Runs of them are runs of positions."""

    __slots__ = ("num_tokens", "text")

    def __init__(self, text: Text, num_tokens: int) -> None:
        self.text = text
        self.num_tokens = num_tokens

    def __len__(self) -> int:
        return self.num_tokens

    @overload
    def __getitem__(self, index: int) -> TokenId: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[TokenId]: ...

    def __getitem__(self, index: int | slice) -> TokenId | Sequence[TokenId]:
        return range(self.num_tokens)[index]

    def append(self, token_id: TokenId) -> None:
        self.num_tokens += 1

    def extend(self, token_ids: Sequence[TokenId]) -> None:
        self.num_tokens += len(token_ids)


class VirtualContent(TokenContent):
    """Of `VirtualTokens` only."""

    def joined(self, prompt: Sequence[TokenId], outputs: Sequence[TokenId]) -> list[TokenId]:
        tokens = cast(VirtualTokens, prompt)
        return cast("list[TokenId]", VirtualTokens(tokens.text, tokens.num_tokens + len(outputs)))

    def hashes(self, token_ids: Sequence[TokenId], block_size: int, salt: bytes) -> list[BlockHash]:
        tokens = cast(VirtualTokens, token_ids)
        return tokens.text.hashes(tokens.num_tokens // block_size, block_size)

    def next_hash(
        self, hashes: Sequence[BlockHash], token_ids: Sequence[TokenId], block_size: int, salt: bytes
    ) -> BlockHash:
        return cast(VirtualTokens, token_ids).text.hashes(len(hashes) + 1, block_size)[-1]

    def unknown_id(self, token_ids: Sequence[TokenId], vocab_size: int) -> TokenId | None:
        return None


VIRTUAL = VirtualContent()
