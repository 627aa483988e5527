"""Gives branches their blocks and takes them back: opening with hits, growing, forking, registering, closing.

Owns no state of its own beyond the pool it is given; decides nothing about order or victims.
"""

from __future__ import annotations

from relevo.core.baton import SampleState
from relevo.core.ids import BlockHash, BlockId, TokenId
from relevo.core.request import EngineRequest
from relevo.policy.block_pool import BlockPool
from relevo.policy.intake import num_blocks_for
from relevo.policy.legs import Branch
from relevo.policy.prefix_cache import ROOT_HASH, block_hash, chain
from relevo.policy.reservations import Grant


class BlockTables:
    def __init__(self, pool: BlockPool, block_size: int, enable_prefix_caching: bool) -> None:
        self._pool = pool
        self._block_size = block_size
        self._is_caching = enable_prefix_caching

    def hashes(self, request: EngineRequest, token_ids: list[TokenId]) -> list[BlockHash]:
        return chain(token_ids, self._block_size, request.salt) if self._is_caching else []

    def usable_hashes(self, hashes: list[BlockHash], num_tokens: int) -> list[BlockHash]:
        """Hits are capped: of `num_tokens` tokens at least the last one is computed."""
        return hashes[: (num_tokens - 1) // self._block_size]

    def expected_hits(self, branch: Branch) -> int:
        """Tokens that would be hits if the branch opened now."""
        usable = self.usable_hashes(branch.hashes, len(branch.token_ids))
        return len(self._pool.match(usable)) * self._block_size

    def open(self, branch: Branch, num_spare: int) -> bool:
        """Blocks for all tokens of the branch, hits first; False if `num_spare` blocks would not stay available."""
        num_tokens = len(branch.token_ids)
        usable = self.usable_hashes(branch.hashes, num_tokens)
        acquired = self._pool.acquire(usable, num_blocks_for(num_tokens, self._block_size), num_spare)
        if acquired is None:
            return False
        branch.block_ids, branch.num_registered_blocks = acquired
        branch.num_computed = branch.num_registered_blocks * self._block_size
        return True

    def adopt(self, branch: Branch, grant: Grant) -> None:
        """The branch takes over the prompt blocks of a grant and what is sealed in them.

        If everything is sealed and nothing drawn yet, the last token is computed once more: same cell, same content.
        """
        branch.block_ids = list(grant.reservation.block_ids)
        branch.num_computed = min(grant.num_sealed_tokens, len(branch.token_ids) - 1)
        branch.num_registered_blocks = grant.num_sealed_tokens // self._block_size

    def cover(self, branch: Branch, num_tokens: int) -> bool:
        """Grow the table to `num_tokens` tokens; False if it does not fit (nothing changes then)."""
        num_missing = num_blocks_for(num_tokens, self._block_size) - len(branch.block_ids)
        if num_missing <= 0:
            return True
        new = self._pool.allocate(num_missing)
        if new is None:
            return False
        branch.block_ids = branch.block_ids + new
        return True

    def fork(self, source: Branch, sample: SampleState, spare: list[BlockId]) -> tuple[Branch, bool]:
        """A branch for `sample` on the computed tokens of `source`: full blocks are shared, a partial one is copied.

        The copy's block comes from `spare` if it has one. False: no block; the new branch holds nothing.
        """
        num_computed, num_full = source.num_computed, source.num_computed // self._block_size
        token_ids = source.token_ids[: source.leg.num_prompt_tokens] + sample.output_token_ids
        branch = Branch(leg=source.leg, samples=(sample,), token_ids=token_ids, hashes=source.hashes[:num_full])
        tail: list[BlockId] = []
        if num_computed % self._block_size:
            block_ids = [spare.pop()] if spare else self._pool.allocate(1)
            if block_ids is None:
                return branch, False
            tail = block_ids
            branch.copy_source = source.block_ids[num_full]
            self._pool.share([branch.copy_source])
        shared = source.block_ids[:num_full]
        self._pool.share(shared)
        branch.block_ids = shared + tail
        branch.num_computed = num_computed
        branch.num_registered_blocks = num_full
        return branch, True

    def advance(self, branch: Branch, num_tokens: int) -> None:
        """`num_tokens` more tokens are computed: the pending copy was made, full blocks become findable."""
        branch.num_computed += num_tokens
        self._end_copy(branch)
        if not self._is_caching or branch.leg.is_foreign:
            return
        size = self._block_size
        for index in range(branch.num_registered_blocks, branch.num_computed // size):
            if index == len(branch.hashes):
                parent = branch.hashes[-1] if branch.hashes else ROOT_HASH
                tokens = branch.token_ids[index * size : (index + 1) * size]
                branch.hashes.append(block_hash(parent, tokens, branch.leg.request.salt))
            self._pool.register(branch.block_ids[index], branch.hashes[index])
            branch.num_registered_blocks = index + 1

    def close(self, branch: Branch) -> None:
        """Let go of everything; the branch can be opened again."""
        self._end_copy(branch)
        if not branch.leg.is_foreign:
            self._pool.release(branch.block_ids)
        branch.block_ids = []
        branch.num_computed = branch.num_registered_blocks = 0

    def _end_copy(self, branch: Branch) -> None:
        if branch.copy_source is not None:
            self._pool.release([branch.copy_source])
            branch.copy_source = None
