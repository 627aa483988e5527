"""Block tables of the KV groups after the first: of windows, chunks and states, which do not keep every token.

The first group of a layout keeps every token, and its table grows with the sequence. The others hold what a step can
still read: blocks that have slid out of a window are taken again for later tokens, and a state has a fixed number.
Blocks of all groups are equal and come from one pool (docs/adr/0014). Knows nothing of requests or prefixes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from relevo.core.errors import UnsupportedModel
from relevo.core.ids import BlockId
from relevo.core.kv import KVGroup, KVKind, KVLayout
from relevo.policy.worker.block_pool import BlockPool

NO_BLOCK: BlockId = -1  # the place of a block that has slid out; it is never read


@dataclass(frozen=True, slots=True)
class TableRule:
    """Which entries of a group's table are needed; entry i holds the tokens [i * S, (i + 1) * S)."""

    group: KVGroup
    block_size: int  # S
    num_state_blocks: int = 0  # of a state, whose table has no tokens

    def end(self, num_tokens: int) -> int:
        """Entries of a sequence of that many tokens, those that have slid out included."""
        return self.num_state_blocks or -(-num_tokens // self.block_size)

    def first(self, num_computed: int) -> int:
        """The first entry that a step after `num_computed` tokens reads."""
        return 0 if self.num_state_blocks else self.group.first_kept(num_computed) // self.block_size

    def most(self, num_tokens: int, max_step_tokens: int) -> int:
        """Blocks that suffice while `num_tokens` tokens are computed in steps of at most `max_step_tokens`."""
        if not self.group.span:
            return self.end(num_tokens)
        return min(self.end(num_tokens), -(-(self.group.span - 1 + max_step_tokens) // self.block_size) + 1)


def table_rules(layout: KVLayout) -> tuple[TableRule, ...]:
    """Of the groups after the first. Raises UnsupportedModel for a layout that blocks cannot hold."""
    first, *others = layout.groups
    if first.is_bounded:
        raise UnsupportedModel(f"the first KV group must keep every token, and it is {first}; put one that does first")
    rules = []
    for group in others:
        layers_per_block = layout.bytes_per_block // group.state_bytes if group.state_bytes else 1
        if layers_per_block == 0:
            needed = -(-group.state_bytes * layout.block_size // layout.bytes_per_block)
            raise UnsupportedModel(
                f"a block of {layout.block_size} tokens has {layout.bytes_per_block} bytes and the state of a layer "
                f"{group.state_bytes}; raise --block-size to at least {needed}"
            )
        num_blocks = -(-group.num_layers // layers_per_block) if group.kind is KVKind.STATE else 0
        rules.append(TableRule(group, layout.block_size, num_blocks))
    return tuple(rules)


@dataclass(slots=True, eq=False)
class GroupTable:
    """Of one sequence."""

    rule: TableRule
    block_ids: list[BlockId]  # NO_BLOCK up to `num_freed`
    num_freed: int = 0
    num_told: int = 0  # entries that the runner knows

    @property
    def held(self) -> list[BlockId]:
        return self.block_ids[self.num_freed :]


class GroupTables:
    """Opens, moves, shares and releases the tables of sequences. Owns no state beyond the pool it is given."""

    def __init__(self, pool: BlockPool, rules: Sequence[TableRule], max_step_tokens: int) -> None:
        self._pool = pool
        self._rules = tuple(rules)
        self._max_step_tokens = max_step_tokens

    def most(self, num_tokens: int) -> int:
        """Blocks of all groups that `open` needs for a sequence of that many tokens."""
        return sum(rule.most(num_tokens, self._max_step_tokens) for rule in self._rules)

    def open(self, block_ids: Sequence[BlockId], num_tokens: int) -> list[GroupTable]:
        """Tables for a sequence that has computed nothing, of the `most(num_tokens)` blocks that it holds."""
        blocks = iter(block_ids)
        return [GroupTable(rule, _take(blocks, rule.most(num_tokens, self._max_step_tokens))) for rule in self._rules]

    def slide(self, tables: Sequence[GroupTable], num_computed: int, num_tokens: int) -> None:
        """Blocks that no step after `num_computed` tokens reads become those of later entries, as far as the
        `num_tokens` known tokens need; what is left over, or shared with a fork, is released."""
        for table in tables:
            first = min(table.rule.first(num_computed), len(table.block_ids))
            slid = table.block_ids[table.num_freed : first]
            if not slid:
                continue
            table.block_ids[table.num_freed : first] = [NO_BLOCK] * len(slid)
            table.num_freed = first
            own = [block_id for block_id in slid if self._pool.num_refs(block_id) == 1]
            num_again = min(len(own), _num_missing(table, num_tokens))
            table.block_ids += own[:num_again]
            self._pool.release([*own[num_again:], *(each for each in slid if self._pool.num_refs(each) > 1)])

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
            end = len(table.block_ids) if table.rule.num_state_blocks else num_computed // table.rule.block_size
            shared = [index for index in range(table.num_freed, end) if index not in written]
            self._pool.share([table.block_ids[index] for index in shared])
            copies += [(table.block_ids[index], block_id) for index, block_id in written.items()]
            own = [written.get(index, table.block_ids[index]) for index in (*shared, *written)]
            forks.append(GroupTable(table.rule, [NO_BLOCK] * table.num_freed + own, table.num_freed))
        return forks, copies

    def release(self, tables: Sequence[GroupTable]) -> None:
        for table in tables:
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
