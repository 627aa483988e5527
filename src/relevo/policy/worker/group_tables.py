"""Block tables of the KV groups after the first: of windows, chunks and states, which do not keep every token.

The first group of a layout keeps every token, and its table grows with the sequence. The others hold what a step can
still read: blocks that have slid out of a window go back, and as many are taken for later tokens; a state has a fixed
number. Blocks of all groups are equal and come from one pool (docs/adr/0014). Knows nothing of requests.

What a block of a group holds can be found under the hash of its tokens and the group's number, until the pool takes it
for something else: a prefix is a hit where every group has what the next token sees.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from relevo.core.ids import BlockHash, BlockId
from relevo.policy.worker.block_pool import BlockPool
from relevo.policy.worker.table_rules import TableRule, num_more_blocks

NO_BLOCK: BlockId = -1  # the place of a block that has slid out; it is never read


@dataclass(slots=True, eq=False)
class GroupTable:
    """Of one sequence."""

    rule: TableRule
    block_ids: list[BlockId]  # NO_BLOCK up to `num_freed`
    num_freed: int = 0
    num_told: int = 0  # entries that the runner knows
    num_registered: int = 0  # entries that can be found, or that others had before

    @property
    def held(self) -> list[BlockId]:
        return self.block_ids[self.num_freed :]


@dataclass(frozen=True, slots=True)
class GroupHits:
    """What the groups after the first have of a prefix."""

    num_blocks: int  # of the prefix
    block_ids: tuple[tuple[BlockId, ...], ...]  # of each group, for the last entries before its end; empty: no hits

    @property
    def all(self) -> list[BlockId]:
        return [block_id for group in self.block_ids for block_id in group]


NO_HITS = GroupHits(0, ())


class GroupTables:
    """Opens, moves, shares and releases the tables of sequences. Owns no state beyond the pool it is given."""

    def __init__(self, pool: BlockPool, rules: Sequence[TableRule], max_step_tokens: int) -> None:
        self._pool = pool
        self._rules = tuple(rules)
        self._max_step_tokens = max_step_tokens
        self.can_hit = not any(rule.num_state_blocks for rule in rules)  # a state of before has been written over

    def match(self, hashes: Sequence[BlockHash]) -> GroupHits:
        """The longest prefix of the blocks with these hashes after which every group has what the next token sees."""
        num_blocks = len(hashes) if self.can_hit else 0
        while num_blocks:
            found = [self._found(group, rule, hashes, num_blocks) for group, rule in enumerate(self._rules, start=1)]
            ends = [each for each in found if isinstance(each, int)]
            if not ends:
                return GroupHits(num_blocks, tuple(tuple(each) for each in found if not isinstance(each, int)))
            num_blocks = min(ends)
        return NO_HITS

    def _found(self, group: int, rule: TableRule, hashes: Sequence[BlockHash], num_blocks: int) -> list[BlockId] | int:
        """What the next token after `num_blocks` sees; the last entry of it that is lacking: every longer prefix up to
        that one sees it, too."""
        block_ids: list[BlockId] = []
        for index in range(num_blocks - 1, rule.first(num_blocks * rule.block_size) - 1, -1):
            block_id = self._pool.find((group, hashes[index]))
            if block_id is None:
                return index
            block_ids.append(block_id)
        return block_ids[::-1]

    def match_tail(self, hashes: Sequence[BlockHash], num_tokens: int) -> GroupHits:
        """Of what the next token after `num_tokens` sees, what is found of the blocks with these hashes: in every group
        up to the same one."""
        if not self.can_hit:
            return NO_HITS
        runs: list[tuple[int, list[BlockId]]] = []
        num_blocks = len(hashes)
        for group, rule in enumerate(self._rules, start=1):
            first = rule.first(num_tokens)
            run: list[BlockId] = []
            for key in hashes[first:]:
                block_id = self._pool.find((group, key))
                if block_id is None:
                    break
                run.append(block_id)
            runs.append((first, run))
            num_blocks = min(num_blocks, max(first, first + len(run)))
        found = tuple(tuple(run[: max(0, num_blocks - first)]) for first, run in runs)
        return GroupHits(num_blocks, found) if any(found) else NO_HITS

    def most(self, num_tokens: int, num_hit_blocks: int = 0) -> int:
        """Blocks of all groups that `open` needs for a sequence of that many tokens, beside the hits."""
        return num_more_blocks(self._rules, num_tokens, self._max_step_tokens, num_hit_blocks)

    def open(self, block_ids: Sequence[BlockId], num_tokens: int, hits: GroupHits = NO_HITS) -> list[GroupTable]:
        """Tables for a sequence that has computed no more than its hits, which it holds, and of the `most` blocks
        beside them. These suffice until all its tokens are computed, however many share the hits."""
        blocks, tables = iter(block_ids), []
        for rule, held in zip(self._rules, hits.block_ids or ((),) * len(self._rules), strict=True):
            first = hits.num_blocks - len(held)
            own = _take(blocks, rule.most(num_tokens, self._max_step_tokens, hits.num_blocks))
            entries = [NO_BLOCK] * first + [*held, *own]
            tables.append(GroupTable(rule, entries, first, num_registered=hits.num_blocks))
        return tables

    def adopt(self, block_ids: Sequence[BlockId], num_tokens: int, found: GroupHits = NO_HITS) -> list[GroupTable]:
        """Tables for a sequence of which another worker computed `num_tokens`: its `tail` lies in what was `found`, and
        the rest in `block_ids`."""
        blocks, tables = iter(block_ids), []
        for rule, held in zip(self._rules, found.block_ids or ((),) * len(self._rules), strict=True):
            first, end = rule.first(num_tokens), rule.end(num_tokens)
            registered = first + len(held)
            entries = [NO_BLOCK] * first + [*held, *_take(blocks, end - registered)]
            tables.append(GroupTable(rule, entries, first, num_registered=registered))
        return tables

    def tail(self, tables: Sequence[GroupTable], num_computed: int, num_found_tokens: int) -> list[BlockId]:
        """What the next token after `num_computed` sees, group by group, without what the receiver found."""
        places = [(table.block_ids, table.rule.tail(num_computed, num_found_tokens)) for table in tables]
        return [block_ids[place] for block_ids, tail in places for place in tail]

    def slide(
        self, tables: Sequence[GroupTable], num_computed: int, num_tokens: int, hashes: Sequence[BlockHash] = ()
    ) -> None:
        """Blocks that no step after `num_computed` tokens reads go back, known by `hashes`. For as many of them as
        nothing else holds others are taken, as far as the `num_tokens` known tokens need them."""
        for group, table in enumerate(tables, start=1):
            first = min(table.rule.first(num_computed), len(table.block_ids))
            slid = table.block_ids[table.num_freed : first]
            if not slid:
                continue
            self._register(group, table, first, hashes)
            table.block_ids[table.num_freed : first] = [NO_BLOCK] * len(slid)
            table.num_freed = first
            num_own = sum(self._pool.num_refs(block_id) == 1 for block_id in slid)
            self._pool.release(slid)
            again = self._pool.allocate(min(num_own, _num_missing(table, num_tokens)))
            assert again is not None, "as many have just gone back"
            table.block_ids += again

    def register(
        self, tables: Sequence[GroupTable], num_computed: int, num_tokens: int, hashes: Sequence[BlockHash]
    ) -> None:
        """What is computed becomes findable, but in tables that are still to take as many blocks as slide out of them:
        one that another sequence shared would not come back."""
        for group, table in enumerate(tables, start=1):
            end = num_computed // table.rule.block_size
            if table.num_registered < end and not _num_missing(table, num_tokens):
                self._register(group, table, end, hashes)

    def _register(self, group: int, table: GroupTable, end: int, hashes: Sequence[BlockHash]) -> None:
        end = min(end, len(hashes))
        for index in range(max(table.num_registered, table.num_freed), end):
            self._pool.register(table.block_ids[index], (group, hashes[index]))
        table.num_registered = max(table.num_registered, end)

    def num_missing(self, tables: Sequence[GroupTable], num_tokens: int) -> int:
        return sum(_num_missing(table, num_tokens) for table in tables)

    def extend(self, tables: Sequence[GroupTable], block_ids: Sequence[BlockId], num_tokens: int) -> None:
        """`block_ids`: the missing ones."""
        blocks = iter(block_ids)
        for table in tables:
            table.block_ids += _take(blocks, _num_missing(table, num_tokens))

    def num_fork_blocks(self, tables: Sequence[GroupTable], num_computed: int) -> int:
        """Blocks that a fork needs for what cannot be shared: states, and partial last blocks."""
        return sum(len(list(_written(table, num_computed))) for table in tables)

    def fork(
        self, tables: Sequence[GroupTable], block_ids: Sequence[BlockId], num_computed: int
    ) -> tuple[list[GroupTable], list[tuple[BlockId, BlockId]]]:
        """Tables of a fork, `block_ids` being new ones, and the copies to make before its first row."""
        blocks, forks, copies = iter(block_ids), [], []
        for table in tables:
            written = {index: next(blocks) for index in _written(table, num_computed)}
            full = num_computed // table.rule.block_size
            end = len(table.block_ids) if table.rule.num_state_blocks else full
            shared = [index for index in range(table.num_freed, end) if index not in written]
            self._pool.share([table.block_ids[index] for index in shared])
            copies += [(table.block_ids[index], block_id) for index, block_id in written.items()]
            own = [written.get(index, table.block_ids[index]) for index in (*shared, *written)]
            entries, registered = [NO_BLOCK] * table.num_freed + own, min(table.num_registered, full)
            forks.append(GroupTable(table.rule, entries, table.num_freed, num_registered=registered))
        return forks, copies

    def release(self, tables: Sequence[GroupTable], num_computed: int = 0, hashes: Sequence[BlockHash] = ()) -> None:
        """Of a sequence that ends or starts anew; what it computed stays findable."""
        for group, table in enumerate(tables, start=1):
            self._register(group, table, num_computed // table.rule.block_size, hashes)
            self._pool.release(table.held)


def _written(table: GroupTable, num_computed: int) -> range:
    """Entries that the next step writes into although they hold something."""
    if table.rule.num_state_blocks:
        return range(len(table.block_ids))
    full, rest = divmod(num_computed, table.rule.block_size)
    return range(full, full + (rest > 0))


def _num_missing(table: GroupTable, num_tokens: int) -> int:
    return max(0, table.rule.end(num_tokens) - len(table.block_ids))


def _take(blocks: Iterator[BlockId], count: int) -> list[BlockId]:
    return [next(blocks) for _ in range(count)]
