"""Gives sequences their blocks and takes them back: opening with hits, growing, forking, registering, closing.

Owns which sequences were closed and not yet told so to the runner; decides nothing about order or victims.
"""

from __future__ import annotations

from relevo.core.baton import SampleState
from relevo.core.cut import LocalBlock
from relevo.core.ids import BlockHash, BlockId, SequenceId, TokenId
from relevo.core.kv import Reservation
from relevo.core.request import EngineRequest
from relevo.policy.worker.block_pool import BlockPool
from relevo.policy.worker.group_tables import NO_HITS, GroupHits, GroupTables
from relevo.policy.worker.intake import SchedulerConfig, kept_rules, num_blocks_for
from relevo.policy.worker.reservations import Grant
from relevo.policy.worker.snapshots import kept_borders
from relevo.policy.worker.worker_requests import Sequence


class BlockTables:
    def __init__(self, pool: BlockPool, config: SchedulerConfig) -> None:
        self._pool = pool
        self._content = config.content
        self._block_size = config.block_size
        self._has_groups = bool(config.more_groups)
        self._config = config
        self._groups = GroupTables(pool, config.more_groups, config.max_batched_tokens)
        self._groups_for: dict[int, GroupTables] = {}  # by block size of the receiver, if it is another one
        self._is_caching = config.enable_prefix_caching
        self._closed: list[SequenceId] = []

    def hashes(self, request: EngineRequest, token_ids: list[TokenId]) -> list[BlockHash]:
        return self._content.hashes(token_ids, self._block_size, request.salt) if self._is_caching else []

    def usable_hashes(self, hashes: list[BlockHash], num_tokens: int) -> list[BlockHash]:
        """Hits are capped: of `num_tokens` tokens at least the last one is computed."""
        return hashes[: (num_tokens - 1) // self._block_size]

    def expected_hits(self, sequence: Sequence) -> int:
        """Tokens that would be hits if the sequence opened now."""
        hits, _, _ = self._match(sequence)
        return len(hits) * self._block_size

    def open(self, sequence: Sequence, num_spare: int) -> bool:
        """Blocks for all tokens of the sequence, hits first; False if `num_spare` blocks would not stay available."""
        hits, more, num_known = self._match(sequence)
        if self._open(sequence, hits, more, num_spare, num_known):
            return True
        # Hits of several groups take some room of their own: what fits the empty pool has to start there without.
        return bool(more.num_blocks) and not self._pool.num_held and self._open(sequence, [], NO_HITS, num_spare)

    def _open(
        self, sequence: Sequence, hits: list[BlockId], more: GroupHits, num_spare: int, num_known_blocks: int = 0
    ) -> bool:
        num_tokens, groups = len(sequence.token_ids), self._groups_of(sequence)
        num_new = num_blocks_for(num_tokens, self._block_size) - len(hits)
        num_more = groups.most(num_tokens, more.num_blocks)
        new = self._pool.take([*hits, *more.all], num_new + num_more, num_spare)
        if new is None:
            return False
        sequence.block_ids = hits + new[:num_new]
        if self._has_groups:
            borders = (
                kept_borders(num_tokens, self._block_size, len(hits), num_known_blocks) if self._is_caching else ()
            )
            sequence.more, sequence.copies = groups.open(new[num_new:], num_tokens, more, borders)
        sequence.num_registered_blocks = len(hits)
        sequence.num_computed = len(hits) * self._block_size
        return True

    def _match(self, sequence: Sequence) -> tuple[list[BlockId], GroupHits, int]:
        """The blocks of the longest prefix that all groups have, of the first and of the others; and how many the first
        one alone has."""
        if sequence.is_scored:
            return [], NO_HITS, 0
        usable = self.usable_hashes(sequence.hashes, len(sequence.token_ids))
        hits = self._pool.match(usable)
        if not self._has_groups:
            return hits, NO_HITS, len(hits)
        more = self._groups_of(sequence).match(usable[: len(hits)])
        return hits[: more.num_blocks], more, len(hits)

    def _groups_of(self, sequence: Sequence) -> GroupTables:
        remote = sequence.parent.remote
        if remote is None or remote.reservation.block_size == self._block_size:
            return self._groups
        size = remote.reservation.block_size
        if size not in self._groups_for:
            rules = kept_rules(self._config, remote.reservation)
            self._groups_for[size] = GroupTables(self._pool, rules, self._config.max_batched_tokens)
        return self._groups_for[size]

    def match_room(self, sequence: Sequence) -> tuple[list[BlockId], GroupHits]:
        """For a prompt that another worker computes: hits of the first group, and what the others have of its end. Hits
        also say where this worker itself could begin: with states that is where one is kept."""
        if sequence.is_scored:
            return [], NO_HITS
        usable = self.usable_hashes(sequence.hashes, sequence.parent.num_prompt_tokens)
        hits = self._pool.match(usable)
        if not self._has_groups:
            return hits, NO_HITS
        if self._groups.have_states:
            hits = hits[: self._groups.match(usable[: len(hits)]).num_blocks]
        return hits, self._groups.match_tail(usable[: len(hits)], sequence.parent.num_prompt_tokens)

    def adopt(self, sequence: Sequence, grant: Grant) -> None:
        """The sequence takes over the prompt blocks of a grant and what is sealed in them.

        If everything is sealed and nothing drawn yet, the last token is computed once more: same cell, same content.
        So are all tokens of a prompt that is scored. With several KV groups everything is sealed, and a token drawn.
        """
        num_prompt_blocks = num_blocks_for(grant.num_prompt_tokens, self._block_size)
        block_ids = grant.reservation.block_ids
        sequence.block_ids = list(block_ids[:num_prompt_blocks])
        sequence.more = self._groups.adopt(block_ids[num_prompt_blocks:], grant.num_prompt_tokens, grant.found)
        num_sealed = 0 if sequence.is_scored else grant.num_sealed_tokens
        sequence.num_computed = min(num_sealed, len(sequence.token_ids) - 1)
        sequence.num_registered_blocks = grant.num_sealed_tokens // self._block_size

    def cover(self, sequence: Sequence, num_tokens: int) -> bool:
        """Grow the tables to `num_tokens` tokens; False if that does not fit (nothing is taken then)."""
        num_missing = num_blocks_for(num_tokens, self._block_size) - len(sequence.block_ids)
        if sequence.more:
            return self._cover_groups(sequence, num_tokens, max(0, num_missing))
        if num_missing <= 0:
            return True
        new = self._pool.allocate(num_missing)
        if new is None:
            return False
        sequence.block_ids += new
        sequence.has_new_blocks = True
        return True

    def _cover_groups(self, sequence: Sequence, num_tokens: int, num_missing: int) -> bool:
        self.slide(sequence)
        new = self._pool.allocate(num_missing + self._groups.num_missing(sequence.more, num_tokens))
        if new is None:
            return False
        sequence.block_ids += new[:num_missing]
        self._groups.extend(sequence.more, new[num_missing:], num_tokens)
        sequence.has_new_blocks = True
        return True

    def slide(self, sequence: Sequence) -> None:
        """Before a row: what no later token reads is used again. A sequence that was opened is then covered as far as
        a step can reach."""
        self._groups.slide(sequence.more, sequence.num_computed, len(sequence.token_ids), self._known(sequence))
        sequence.has_new_blocks = True

    def tokens_to_border(self, sequence: Sequence, num_tokens: int) -> int:
        """Of the next `num_tokens` of a sequence of several KV groups, as many as its next step may compute."""
        return self._groups.tokens_to_border(sequence.more, sequence.num_computed, num_tokens)

    def leave_snapshots(self, sequence: Sequence, num_spare: int) -> None:
        """Before a row: it does not write into what others can find, but goes on in a copy if more than `num_spare`
        blocks are left."""
        copies = self._groups.leave_snapshots(sequence.more, num_spare)
        if copies:
            sequence.copies += copies
            sequence.has_new_blocks = True

    def fork(self, source: Sequence, sample: SampleState, spare: list[BlockId]) -> tuple[Sequence, bool]:
        """A sequence for `sample` on the computed tokens of `source`: full blocks are shared, a partial one is copied.

        The copy's block comes from `spare` if it has one. False: no block; the new sequence holds nothing.
        """
        num_computed, num_full = source.num_computed, source.num_computed // self._block_size
        token_ids = self._content.joined(source.parent.request.prompt_token_ids, sample.output_token_ids)
        sequence = Sequence(
            parent=source.parent, samples=(sample,), token_ids=token_ids, hashes=source.hashes[:num_full]
        )
        num_tails = int(num_computed % self._block_size > 0)
        num_new = num_tails + self._groups.num_fork_blocks(num_computed, self._block_size)
        new = [spare.pop() for _ in range(num_new)] if len(spare) >= num_new else self._pool.allocate(num_new)
        if new is None:
            return sequence, False
        tail = new[:num_tails]
        sequence.more, sequence.copies = self._groups.fork(source.more, new[num_tails:], num_computed)
        sequence.copies += [(source.block_ids[num_full], target) for target in tail]
        self._pool.share([held for held, _ in sequence.copies])
        shared = source.block_ids[:num_full]
        self._pool.share(shared)
        sequence.block_ids = shared + tail
        sequence.num_computed = num_computed
        sequence.num_registered_blocks = num_full
        return sequence, True

    def advance(self, sequence: Sequence, num_tokens: int) -> None:
        """`num_tokens` more tokens are computed: the pending copy was made, full blocks become findable."""
        sequence.num_computed += num_tokens
        self._end_copy(sequence)
        self.register(sequence, sequence.num_computed)

    def register(self, sequence: Sequence, num_computed: int) -> None:
        """The full blocks of the first `num_computed` tokens become findable."""
        if not self._is_caching or sequence.parent.is_foreign:
            return
        size = self._block_size
        for index in range(sequence.num_registered_blocks, num_computed // size):
            if index == len(sequence.hashes):
                salt = sequence.parent.request.salt
                sequence.hashes.append(self._content.next_hash(sequence.hashes, sequence.token_ids, size, salt))
            self._pool.register(sequence.block_ids[index], sequence.hashes[index])
            sequence.num_registered_blocks = index + 1
        if sequence.more:
            self._groups.register(sequence.more, num_computed, len(sequence.token_ids), sequence.hashes)

    def tail(self, sequence: Sequence, reservation: Reservation) -> list[LocalBlock]:
        """Of the KV groups after the first, what the next token sees and the receiver did not find."""
        return self._groups.tail(sequence.more, sequence.num_computed, reservation)

    def _known(self, sequence: Sequence) -> list[BlockHash]:
        return sequence.hashes if self._is_caching else []

    def close(self, sequence: Sequence) -> None:
        """Let go of everything; the sequence can be opened again."""
        self._end_copy(sequence)
        if not sequence.parent.is_foreign:
            self._pool.release(sequence.block_ids)
            self._groups.release(sequence.more, sequence.num_computed, self._known(sequence))
        sequence.block_ids, sequence.more = [], []
        sequence.num_computed = sequence.num_registered_blocks = 0
        if sequence.sequence_id:
            self._closed.append(sequence.sequence_id)
            sequence.sequence_id = 0

    def take_closed(self) -> list[SequenceId]:
        """Of sequences that were closed since the last call, as the runner knows them."""
        closed, self._closed = self._closed, []
        return closed

    def _end_copy(self, sequence: Sequence) -> None:
        if sequence.copies:
            self._pool.release([held for held, _ in sequence.copies])
            sequence.copies = []
