"""Which entries of the block tables of KV groups are needed: pure arithmetic over a layout."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from relevo.core.errors import UnsupportedModel
from relevo.core.ids import BlockId
from relevo.core.kv import KVGroup, KVKind, KVLayout

NO_BLOCK: BlockId = -1  # the place of a block that has slid out; it is never read


@dataclass(frozen=True, slots=True)
class TableRule:
    """Which entries of a group's table are needed; entry i holds the tokens [i * S, (i + 1) * S)."""

    group: KVGroup
    block_size: int  # S
    num_state_blocks: int = 0  # of a state, whose table has no tokens
    receiver_block_size: int = 1  # what is kept begins at a multiple of it: so the first block that goes out is whole

    def of_size(self, block_size: int) -> TableRule:
        """Of a worker with blocks of that size."""
        return replace(self, block_size=block_size)

    def kept_for(self, block_size: int) -> TableRule:
        """For prompts that a worker with blocks of that size receives."""
        return replace(self, receiver_block_size=block_size)

    def end(self, num_tokens: int) -> int:
        """Entries of a sequence of that many tokens, those that have slid out included."""
        return self.num_state_blocks or -(-num_tokens // self.block_size)

    def first(self, num_computed: int) -> int:
        """The first entry that a step after `num_computed` tokens reads."""
        if self.num_state_blocks:
            return 0
        first_kept = self.group.first_kept(num_computed)
        return first_kept // self.receiver_block_size * self.receiver_block_size // self.block_size

    def most(self, num_tokens: int, max_step_tokens: int, num_hit_blocks: int = 0) -> int:
        """Blocks that suffice while `num_tokens` tokens are computed in steps of at most `max_step_tokens`, beside the
        first `num_hit_blocks` entries."""
        if self.num_state_blocks:  # its own, whatever it begins with
            return self.num_state_blocks
        num_entries = self.end(num_tokens) - num_hit_blocks
        if not self.group.span:
            return num_entries
        num_kept = self.group.span - 1 + max_step_tokens + self.receiver_block_size - 1
        return min(num_entries, -(-num_kept // self.block_size) + 1)

    def tail(self, num_computed: int, num_found_tokens: int = 0) -> range:
        """Entries with what the next token sees, those of the first `num_found_tokens` left out (whole blocks): of a
        state all, because it is never found for all tokens of a prompt."""
        if self.num_state_blocks:
            return range(self.num_state_blocks)
        return range(max(self.first(num_computed), num_found_tokens // self.block_size), self.end(num_computed))


def num_tail_blocks(rules: Sequence[TableRule], num_computed: int, num_found_tokens: int = 0) -> int:
    return sum(len(rule.tail(num_computed, num_found_tokens)) for rule in rules)


def num_fork_blocks(rules: Sequence[TableRule], num_computed: int, block_size: int) -> int:
    """Blocks of these groups that a fork after so many tokens cannot share: states, and partial last blocks."""
    has_partial = num_computed % block_size > 0
    return sum(rule.num_state_blocks or has_partial for rule in rules)


def num_more_blocks(rules: Sequence[TableRule], num_tokens: int, max_step_tokens: int, num_hit_blocks: int = 0) -> int:
    """Blocks of these groups that a sequence of so many tokens takes when it starts, beside its hits."""
    return sum(rule.most(num_tokens, max_step_tokens, num_hit_blocks) for rule in rules)


def num_blocks_of(rules: Sequence[TableRule], num_tokens: int, block_size: int, max_step_tokens: int) -> int:
    """The same of all groups, the first included."""
    return -(-num_tokens // block_size) + num_more_blocks(rules, num_tokens, max_step_tokens)


def num_pool_tokens(rules: Sequence[TableRule], num_blocks: int, block_size: int, max_step_tokens: int) -> int:
    """The longest sequence that fits so many blocks."""
    most = num_blocks * block_size
    if not rules:
        return most
    taken = partial(num_blocks_of, rules, block_size=block_size, max_step_tokens=max_step_tokens)
    return bisect_right(range(most + 1), num_blocks, key=taken) - 1


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
