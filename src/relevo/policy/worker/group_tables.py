"""Block tables of the KV groups after the first: of windows, chunks and states, which do not keep every token.

The first group of a layout keeps every token, and its table grows with the sequence. The others hold what a step can
still read: blocks that have slid out of a window go back, and as many are taken for later tokens; a state has a fixed
number. Blocks of all groups are equal and come from one pool (docs/adr/0014). Knows nothing of requests.

What a block of a group holds can be found under the hash of its tokens and the group's number, until the pool takes it
for something else: a prefix is a hit where every group has what the next token sees. Of states that is a snapshot
(`policy.worker.state_tables`), which a sequence copies before its first row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from relevo.core.cut import LocalBlock
from relevo.core.ids import BlockHash, BlockId
from relevo.core.kv import Reservation
from relevo.policy.worker.block_cut import cut_block
from relevo.policy.worker.block_pool import BlockPool
from relevo.policy.worker.snapshots import tokens_to_border
from relevo.policy.worker.state_tables import Snapshots, find_state, keep_state, leave_state
from relevo.policy.worker.table_rules import NO_BLOCK, TableRule, num_fork_blocks, num_more_blocks

Copies = list[tuple[BlockId, BlockId]]  # (source, target), before the next row of a sequence; it holds both


@dataclass(slots=True, eq=False)
class GroupTable:
    """Of one sequence."""

    rule: TableRule
    block_ids: list[BlockId]  # NO_BLOCK up to `num_freed`
    num_freed: int = 0
    num_told: int = 0  # entries that the runner knows
    num_registered: int = 0  # entries that can be found, or that others had before
    snapshots: Snapshots = field(default_factory=Snapshots)  # of a state

    @property
    def held(self) -> list[BlockId]:
        return self.block_ids[self.num_freed :]


@dataclass(frozen=True, slots=True)
class GroupHits:
    """What the groups after the first have of a prefix."""

    num_blocks: int  # of the prefix
    # Of each group, for the last entries before its end, or the snapshot of its state; empty: no hits.
    block_ids: tuple[tuple[BlockId, ...], ...]

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
        self.have_states = any(rule.num_state_blocks for rule in rules)

    def match(self, hashes: Sequence[BlockHash]) -> GroupHits:
        """The longest prefix of the blocks with these hashes after which every group has what the next token sees."""
        num_blocks = len(hashes)
        while num_blocks:
            found = [self._found(group, rule, hashes, num_blocks) for group, rule in enumerate(self._rules, start=1)]
            ends = [each for each in found if isinstance(each, int)]
            if not ends:
                return GroupHits(num_blocks, tuple(tuple(each) for each in found if not isinstance(each, int)))
            num_blocks = min(ends)
        return NO_HITS

    def _found(self, group: int, rule: TableRule, hashes: Sequence[BlockHash], num_blocks: int) -> list[BlockId] | int:
        """What the next token after `num_blocks` sees; else the longest shorter prefix that this group may have: one
        that ends before the last entry that is lacking, or with a snapshot."""
        if rule.num_state_blocks:
            for end in range(num_blocks, 0, -1):
                state = find_state(self._pool, group, hashes[end - 1], rule.num_state_blocks)
                if state is not None:
                    return state if end == num_blocks else end
            return 0
        block_ids: list[BlockId] = []
        for index in range(num_blocks - 1, rule.first(num_blocks * rule.block_size) - 1, -1):
            block_id = self._pool.find((group, hashes[index]))
            if block_id is None:
                return index
            block_ids.append(block_id)
        return block_ids[::-1]

    def match_tail(self, hashes: Sequence[BlockHash], num_tokens: int) -> GroupHits:
        """Of what the next token after `num_tokens` sees, what is found of the blocks with these hashes: in every group
        up to the same one. Nothing of states: none is kept of all tokens of a prompt."""
        runs: list[tuple[int, list[BlockId]]] = []
        num_blocks = len(hashes)
        for group, rule in enumerate(self._rules, start=1):
            if rule.num_state_blocks:
                runs.append((num_blocks, []))
                continue
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

    def open(
        self, block_ids: Sequence[BlockId], num_tokens: int, hits: GroupHits = NO_HITS, borders: Sequence[int] = ()
    ) -> tuple[list[GroupTable], Copies]:
        """Tables for a sequence that has computed no more than its hits, which it holds, and of the `most` blocks
        beside them. These suffice until all its tokens are computed, however many share the hits. `borders`: after so
        many tokens its states are kept. Snapshots among the hits are to be copied, and then let go."""
        blocks, tables, copies = iter(block_ids), [], Copies()
        for rule, held in zip(self._rules, hits.block_ids or ((),) * len(self._rules), strict=True):
            own = _take(blocks, rule.most(num_tokens, self._max_step_tokens, hits.num_blocks))
            if rule.num_state_blocks:
                copies += zip(held, own, strict=False)
                tables.append(GroupTable(rule, own, snapshots=Snapshots(borders, max(num_tokens - 1, 0))))
                continue
            first = hits.num_blocks - len(held)
            entries = [NO_BLOCK] * first + [*held, *own]
            tables.append(GroupTable(rule, entries, first, num_registered=hits.num_blocks))
        return tables, copies

    def adopt(self, block_ids: Sequence[BlockId], num_tokens: int, found: GroupHits = NO_HITS) -> list[GroupTable]:
        """Tables for a sequence of which another worker computed `num_tokens`: its `tail` lies in what was `found`, and
        the rest in `block_ids`."""
        blocks, tables = iter(block_ids), []
        for rule, held in zip(self._rules, found.block_ids or ((),) * len(self._rules), strict=True):
            first, end = rule.first(num_tokens), rule.end(num_tokens)
            registered = first + len(held)
            entries = [NO_BLOCK] * first + [*held, *_take(blocks, end - registered)]
            snapshots = Snapshots(answer_from=num_tokens)
            tables.append(GroupTable(rule, entries, first, num_registered=registered, snapshots=snapshots))
        return tables

    def tail(self, tables: Sequence[GroupTable], num_computed: int, reservation: Reservation) -> list[LocalBlock]:
        """What the next token after `num_computed` sees, group by group, without what the receiver found: in blocks of
        the receiver's size."""
        num_found_tokens, size = reservation.num_found_tokens, reservation.block_size
        found: list[LocalBlock] = []
        for group, table in enumerate(tables, start=1):
            own, own_size = table.block_ids, table.rule.block_size
            if size == own_size:
                found += [own[place] for place in table.rule.tail(num_computed, num_found_tokens)]
                continue
            places = TableRule(table.rule.group, size).tail(num_computed, num_found_tokens)
            found += [cut_block(own, own_size, size, place, num_computed, group) for place in places]
        return found

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

    def tokens_to_border(self, tables: Sequence[GroupTable], num_computed: int, num_tokens: int) -> int:
        """Of a step of `num_tokens` those after which a state is kept; all of them, if none is."""
        return min([tokens_to_border(each.snapshots.borders, num_computed, num_tokens) for each in tables])

    def leave_snapshots(self, tables: Sequence[GroupTable], num_spare: int) -> Copies:
        """Before a row: copies of states that others can find, into blocks that take their place."""
        copies = Copies()
        for group, table in enumerate(tables, start=1):
            if table.snapshots.held is None:
                continue
            new = leave_state(self._pool, group, table.block_ids, table.snapshots, num_spare)
            if new:
                copies += zip(table.block_ids, new, strict=True)
                table.block_ids, table.num_told = new, 0
        return copies

    def register(
        self, tables: Sequence[GroupTable], num_computed: int, num_tokens: int, hashes: Sequence[BlockHash]
    ) -> None:
        """What is computed becomes findable, but in tables that are still to take as many blocks as slide out of them:
        one that another sequence shared would not come back. A state, where it is to be kept."""
        for group, table in enumerate(tables, start=1):
            if table.rule.num_state_blocks:
                size = table.rule.block_size
                keep_state(self._pool, group, table.block_ids, table.snapshots, num_computed, size, hashes)
                continue
            end = num_computed // table.rule.block_size
            if table.num_registered < end and not _num_missing(table, num_tokens):
                self._register(group, table, end, hashes)

    def _register(self, group: int, table: GroupTable, end: int, hashes: Sequence[BlockHash]) -> None:
        if table.rule.num_state_blocks:
            return
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

    def num_fork_blocks(self, num_computed: int, block_size: int) -> int:
        return num_fork_blocks(self._rules, num_computed, block_size)

    def fork(
        self, tables: Sequence[GroupTable], block_ids: Sequence[BlockId], num_computed: int
    ) -> tuple[list[GroupTable], Copies]:
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
            forks.append(
                GroupTable(
                    table.rule,
                    entries,
                    table.num_freed,
                    num_registered=registered,
                    snapshots=Snapshots(answer_from=num_computed),
                )
            )
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
