"""A step plan as arrays: what a model needs to compute the rows of one step, in numpy.

Owns the packing of rows into flat arrays. It does not know the model, the backend or why a row was scheduled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from relevo.core.ids import BlockId, TokenId
from relevo.core.plan import ScheduledRow, StepPlan
from relevo.core.replica import ReplicaSequence

Int64Array = npt.NDArray[np.int64]
GroupedTables = list[tuple[list[BlockId], ...]]  # of each KV group, one per row


@dataclass(frozen=True, slots=True, kw_only=True)
class StepInputs:
    """T tokens in the step, B rows, G KV groups of tokens, M blocks of the longest row at least. Rows in order, their
    tokens consecutive."""

    token_ids: Int64Array  # [T]
    positions: Int64Array  # [T], of each token in its own row's context
    block_of_token: Int64Array  # [G, T], block that receives the token's KV
    offset_of_token: Int64Array  # [T], place in that block
    row_first_token: Int64Array  # [B + 1], row b owns tokens [row_first_token[b], row_first_token[b + 1])
    context_lengths: Int64Array  # [B], tokens a row attends to, those of this step included
    block_tables: Int64Array  # [G, B, M], block 0 beyond a row's blocks; what no query of the row sees may be anything
    block_size: int  # S
    state_blocks: tuple[Int64Array, ...] = ()  # of each group of states [B, n]: what each row's state lies in

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_rows(self) -> int:
        return len(self.context_lengths)

    @property
    def num_groups(self) -> int:
        return len(self.block_tables)

    def part(self, first: int, last: int) -> StepInputs:
        """Tokens first up to last of the step, as a step of their own: a row that is cut attends as far as it got."""
        ends = self.row_first_token
        rows = slice(int(np.searchsorted(ends, first, "right")) - 1, int(np.searchsorted(ends, last, "left")))
        row_first_token = np.clip(ends[rows.start : rows.stop + 1], first, last) - first
        left = np.maximum(ends[rows.start + 1 : rows.stop + 1] - last, 0)  # of the row that goes on behind `last`
        return StepInputs(
            token_ids=self.token_ids[first:last],
            positions=self.positions[first:last],
            block_of_token=np.ascontiguousarray(self.block_of_token[:, first:last]),
            offset_of_token=self.offset_of_token[first:last],
            row_first_token=row_first_token,
            context_lengths=self.context_lengths[rows] - left,
            block_tables=np.ascontiguousarray(self.block_tables[:, rows]),
            block_size=self.block_size,
            state_blocks=tuple(each[rows] for each in self.state_blocks),
        )

    def fresh_tail_blocks(self) -> list[list[BlockId]]:
        """Of each KV group, last blocks of rows that this step enters at their first slot and does not fill; empty if
        there are none in any: rows end alike in all."""
        last_tokens = self.row_first_token[1:] - 1
        used = self.offset_of_token[last_tokens] + 1  # slots of the last block in use after this step
        is_fresh = (used < self.block_size) & (used <= np.diff(self.row_first_token))
        blocks: list[list[BlockId]] = self.block_of_token[:, last_tokens[is_fresh]].tolist()
        return blocks if blocks[0] else []


class StepPacker:
    """Packs one step after another. Inputs are valid until the next `pack`: arrays are used again while they fit."""

    def __init__(self, block_size: int, num_state_groups: int = 0) -> None:
        """`num_state_groups`: the last ones of rows' tables."""
        self._block_size = block_size
        self._num_state_groups = num_state_groups
        self._decodes: DecodeArrays | None = None

    def pack_plan(self, plan: StepPlan, sequences: Sequence[ReplicaSequence]) -> StepInputs:
        """At least one row; `sequences`: of each, with the plan applied."""
        tables, states = self._apart([each.tables for each in sequences])
        if max(plan.lengths) == 1:
            return _with_states(self._pack_decodes(plan.last_token_ids, plan.starts, tables), states)
        rows = zip(sequences, plan.starts, plan.lengths, strict=True)
        token_ids = [each.tokens(start, start + length) for each, start, length in rows]
        return _with_states(_pack_chunks(token_ids, plan.starts, tables, self._block_size), states)

    def pack(self, rows: Sequence[ScheduledRow]) -> StepInputs:
        """At least one row."""
        starts, (tables, states) = [row.start for row in rows], self._apart([row.tables for row in rows])
        if any(len(row.token_ids) != 1 for row in rows):
            chunks = _pack_chunks([row.token_ids for row in rows], starts, tables, self._block_size)
            return _with_states(chunks, states)
        return _with_states(self._pack_decodes([row.token_ids[0] for row in rows], starts, tables), states)

    def _apart(self, tables: Sequence[Sequence[list[BlockId]]]) -> tuple[GroupedTables, GroupedTables]:
        """Of groups of tokens, and of groups of states."""
        grouped = by_group(tables)
        num_token_groups = len(grouped) - self._num_state_groups
        return grouped[:num_token_groups], grouped[num_token_groups:]

    def _pack_decodes(self, token_ids: list[TokenId], starts: list[int], tables: GroupedTables) -> StepInputs:
        if self._decodes is None or not self._decodes.has_room_for(tables):
            self._decodes = DecodeArrays(tables, self._block_size)
        return self._decodes.fill(token_ids, starts, tables)


def pack_rows(rows: Sequence[ScheduledRow], block_size: int, num_state_groups: int = 0) -> StepInputs:
    """As `StepPacker.pack`, into arrays of their own."""
    return StepPacker(block_size, num_state_groups).pack(rows)


def _with_states(inputs: StepInputs, tables: GroupedTables) -> StepInputs:
    if not tables:
        return inputs
    return replace(inputs, state_blocks=tuple(np.array(group, dtype=np.int64) for group in tables))


def by_group(tables: Sequence[Sequence[list[BlockId]]]) -> GroupedTables:
    """`tables`: of each row, one per KV group."""
    return list(zip(*tables, strict=True))


class DecodeArrays:
    """The arrays of steps with one token in each of B rows: written again in every step, block tables only where a row
    has another list of blocks than in the step before, or a longer one."""

    def __init__(self, tables: GroupedTables, block_size: int) -> None:
        num_groups, num_rows = len(tables), len(tables[0])
        width = max(len(table) for group in tables for table in group)
        self._columns = np.zeros((4, num_rows), dtype=np.int64)
        self._blocks = np.zeros((num_groups, num_rows), dtype=np.int64)
        self._tables = np.zeros((num_groups, num_rows, width + width // 4 + 1), dtype=np.int64)  # rows grow; arbitrary
        self._groups = [TableRows(rows) for rows in self._tables]
        self._inputs = StepInputs(
            token_ids=self._columns[0],
            positions=self._columns[1],
            block_of_token=self._blocks,
            offset_of_token=self._columns[2],
            row_first_token=np.arange(num_rows + 1),
            context_lengths=self._columns[3],
            block_tables=self._tables,
            block_size=block_size,
        )

    def has_room_for(self, tables: GroupedTables) -> bool:
        num_groups, num_rows, width = self._tables.shape
        if (len(tables), len(tables[0])) != (num_groups, num_rows):
            return False
        return max([max(map(len, group)) for group in tables]) <= width

    def fill(self, token_ids: list[TokenId], starts: list[int], tables: GroupedTables) -> StepInputs:
        size = self._inputs.block_size
        self._blocks[:] = [rows.take(lists, starts, size) for rows, lists in zip(self._groups, tables, strict=True)]
        offsets, contexts = [start % size for start in starts], [start + 1 for start in starts]
        self._columns[:] = (token_ids, starts, offsets, contexts)
        return self._inputs


class TableRows:
    """Block tables of one KV group over the rows of a step."""

    def __init__(self, rows: Int64Array) -> None:
        self._rows = rows  # [B, M]
        self._lists: list[list[BlockId]] = [[]] * len(rows)  # what the rows hold; a list only grows
        self._counts = [0] * len(rows)  # how much of it

    def take(self, tables: Sequence[list[BlockId]], starts: list[int], block_size: int) -> list[BlockId]:
        """Takes over what is news of the tables; the block that each row's token goes into."""
        lists, counts, blocks = self._lists, self._counts, []
        for index, table in enumerate(tables):
            place, count = starts[index] // block_size, len(table)
            assert count > place, f"row {index}: {count} blocks for {starts[index] + 1} tokens"
            if lists[index] is not table or counts[index] != count:
                self._take(index, table)
            blocks.append(table[place])
        return blocks

    def _take(self, index: int, table: list[BlockId]) -> None:
        first, count = self._counts[index] if self._lists[index] is table else 0, len(table)
        self._lists[index], self._counts[index] = table, count
        self._rows[index, first:count] = table[first:]
        if first == 0:
            self._rows[index, count:] = 0


def _pack_chunks(
    token_ids: Sequence[Sequence[TokenId]], first_positions: Sequence[int], tables: GroupedTables, block_size: int
) -> StepInputs:
    lengths = np.array([len(tokens) for tokens in token_ids], dtype=np.int64)
    starts = np.array(first_positions, dtype=np.int64)
    context_lengths = starts + lengths
    num_blocks = (-(-context_lengths // block_size)).tolist()
    block_tables = np.zeros((len(tables), len(lengths), max(num_blocks)), dtype=np.int64)
    for rows, group in zip(block_tables, tables, strict=True):
        for index, (table, count) in enumerate(zip(group, num_blocks, strict=True)):
            assert len(table) >= count, f"row {index}: {len(table)} blocks for {count} needed"
            rows[index, :count] = table[:count]
    row_first_token = np.concatenate(([0], np.cumsum(lengths)))
    row_of_token = np.repeat(np.arange(len(lengths)), lengths)
    positions = np.arange(row_first_token[-1]) - (row_first_token[:-1] - starts)[row_of_token]
    return StepInputs(
        token_ids=np.concatenate([np.asarray(tokens, dtype=np.int64) for tokens in token_ids]),
        positions=positions,
        block_of_token=np.ascontiguousarray(block_tables[:, row_of_token, positions // block_size]),
        offset_of_token=positions % block_size,
        row_first_token=row_first_token,
        context_lengths=context_lengths,
        block_tables=block_tables,
        block_size=block_size,
    )
