"""Owns which content lies in which block, and the order in which unreferenced content is forgotten.

Knows nothing of reference counts, free blocks or requests; `policy.worker.block_pool` asks it. A block's hash covers
its own tokens, every token before them and the salt, so equal hashes mean equal KV content (hash chaining as in vLLM's
automatic prefix caching).

What became findable and what was forgotten since the last `take_changes` is noted, so that others can follow: of the
first KV group, whose blocks have hashes alone for keys. Those of the others are known by number of the group and hash,
those of a state, which takes several, by their place in it, too.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Callable, Sequence
from hashlib import blake2b

from relevo.core.ids import BlockHash, BlockId, TokenId
from relevo.core.request import EngineRequest

HASH_BYTES = 16
ROOT_HASH: BlockHash = bytes(HASH_BYTES)  # the parent of a first block

# Of a KV group after the first: its number and the hash; of a state, whose tokens end with that hash, a place besides.
ContentKey = BlockHash | tuple[int, BlockHash] | tuple[int, BlockHash, int]


def block_hash(parent: bytes, token_ids: Sequence[TokenId], salt: bytes) -> BlockHash:
    """Hash of one block: length-prefixed parent and salt, then the tokens as little-endian uint32. 16 bytes."""
    digest = blake2b(digest_size=HASH_BYTES)
    digest.update(struct.pack("<II", len(parent), len(salt)))
    digest.update(parent)
    digest.update(salt)
    digest.update(struct.pack(f"<{len(token_ids)}I", *token_ids))
    return digest.digest()


def chain(token_ids: Sequence[TokenId], block_size: int, salt: bytes) -> list[BlockHash]:
    """Hashes of the full blocks of `token_ids`, first to last; a partial last block has none."""
    hashes: list[BlockHash] = []
    parent = ROOT_HASH
    for end in range(block_size, len(token_ids) + 1, block_size):
        parent = block_hash(parent, token_ids[end - block_size : end], salt)
        hashes.append(parent)
    return hashes


def prompt_hashes(request: EngineRequest, block_size: int) -> list[BlockHash]:
    """Of the blocks of its prompt that may be hits: the last token is always computed."""
    prompt = request.prompt_token_ids
    return chain(prompt[: len(prompt) - 1], block_size, request.salt)


class PromptHashes:
    """Of one prompt, for workers of whatever block size: made for a size when they are first asked for."""

    def __init__(self, make: Callable[[int], Sequence[BlockHash]]) -> None:
        self._make = make
        self._of_size: dict[int, Sequence[BlockHash]] = {}

    def of(self, block_size: int) -> Sequence[BlockHash]:
        if block_size not in self._of_size:
            self._of_size[block_size] = self._make(block_size)
        return self._of_size[block_size]


class PrefixCache:
    """Hash to block, block to hash, and the reusable blocks (content known, not held), oldest first."""

    def __init__(self) -> None:
        self._block_of: dict[ContentKey, BlockId] = {}
        self._key_of: dict[BlockId, ContentKey] = {}
        self._reusable: OrderedDict[BlockId, None] = OrderedDict()
        self.num_evicted = 0  # since the start
        self._changes: dict[BlockHash, bool] = {}  # True: findable now; at most once per content

    @property
    def hashes(self) -> tuple[BlockHash, ...]:
        """Everything of the first KV group that can be found now."""
        return tuple(key for key in self._block_of if not isinstance(key, tuple))

    def take_changes(self) -> tuple[tuple[BlockHash, ...], tuple[BlockHash, ...]]:
        """(stored, evicted) since the last call; content that came and went in between is in neither or one of them."""
        if not self._changes:
            return (), ()
        changes, self._changes = self._changes, {}
        stored = tuple(key for key, is_known in changes.items() if is_known)
        return stored, tuple(key for key, is_known in changes.items() if not is_known)

    @property
    def num_reusable(self) -> int:
        return len(self._reusable)

    def knows(self, block_id: BlockId) -> bool:
        return block_id in self._key_of

    def find(self, key: ContentKey) -> BlockId | None:
        return self._block_of.get(key)

    def match(self, hashes: Sequence[BlockHash]) -> list[BlockId]:
        """Blocks of the longest known prefix of `hashes`."""
        block_ids: list[BlockId] = []
        for key in hashes:
            block_id = self._block_of.get(key)
            if block_id is None:
                break
            block_ids.append(block_id)
        return block_ids

    def register(self, block_id: BlockId, key: ContentKey) -> bool:
        """Make the block findable. False if the content is known already: the first block keeps it."""
        if key in self._block_of or block_id in self._key_of:
            return False
        self._block_of[key] = block_id
        self._key_of[block_id] = key
        self._note(key, is_known=True)
        return True

    def forget(self, key: ContentKey) -> BlockId:
        """Its block, which is not reusable any more. Requires content that is known."""
        block_id = self._block_of.pop(key)
        del self._key_of[block_id]
        self._reusable.pop(block_id, None)
        self._note(key, is_known=False)
        return block_id

    def park(self, block_id: BlockId) -> None:
        """The last holder let go: the block becomes the youngest reusable one."""
        assert block_id in self._key_of and block_id not in self._reusable
        self._reusable[block_id] = None

    def take(self, block_id: BlockId) -> None:
        """A parked block is held again."""
        del self._reusable[block_id]

    def evict(self) -> BlockId:
        """Forget the content of the oldest reusable block and give it up. Requires num_reusable > 0."""
        block_id, _ = self._reusable.popitem(last=False)
        key = self._key_of.pop(block_id)
        del self._block_of[key]
        self._note(key, is_known=False)
        self.num_evicted += 1
        return block_id

    def _note(self, key: ContentKey, is_known: bool) -> None:
        if not isinstance(key, tuple):
            self._changes[key] = is_known
