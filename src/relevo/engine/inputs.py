"""A step plan as arrays: what a model needs to compute the rows of one step, in numpy.

Owns the packing of rows into flat arrays. It does not know the model, the backend or why a row was scheduled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from relevo.core.ids import BlockId, TokenId
from relevo.core.plan import ScheduledRow, StepPlan
from relevo.core.replica import ReplicaSequence

Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepInputs:
    """T tokens in the step, B rows, M blocks of the longest row at least. Rows in order, their tokens consecutive."""

    token_ids: Int64Array  # [T]
    positions: Int64Array  # [T], of each token in its own row's context
    block_of_token: Int64Array  # [T], block that receives the token's KV
    offset_of_token: Int64Array  # [T], place in that block
    row_first_token: Int64Array  # [B + 1], row b owns tokens [row_first_token[b], row_first_token[b + 1])
    context_lengths: Int64Array  # [B], tokens a row attends to, those of this step included
    block_tables: Int64Array  # [B, M], block 0 beyond a row's blocks
    block_size: int  # S

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_rows(self) -> int:
        return len(self.context_lengths)

    def fresh_tail_blocks(self) -> list[BlockId]:
        """Last blocks of rows that this step enters at their first slot and does not fill."""
        last_tokens = self.row_first_token[1:] - 1
        used = self.offset_of_token[last_tokens] + 1  # slots of the last block in use after this step
        is_fresh = (used < self.block_size) & (used <= np.diff(self.row_first_token))
        blocks: list[BlockId] = self.block_of_token[last_tokens[is_fresh]].tolist()
        return blocks


class StepPacker:
    """Packs one step after another. Inputs are valid until the next `pack`: arrays are used again while they fit."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._decodes: DecodeArrays | None = None

    def pack_plan(self, plan: StepPlan, sequences: Sequence[ReplicaSequence]) -> StepInputs:
        """At least one row; `sequences`: of each, with the plan applied."""
        if max(plan.lengths) == 1:
            return self._pack_decodes(plan.last_token_ids, plan.starts, [each.tables[0] for each in sequences])
        rows = zip(sequences, plan.starts, plan.lengths, strict=True)
        return _pack_chunks(
            [
                ScheduledRow(each.request, each.tokens(start, start + length), start, each.tables[0])
                for each, start, length in rows
            ],
            self._block_size,
        )

    def pack(self, rows: Sequence[ScheduledRow]) -> StepInputs:
        """At least one row."""
        if any(len(row.token_ids) != 1 for row in rows):
            return _pack_chunks(rows, self._block_size)
        tables = [row.block_ids for row in rows]
        return self._pack_decodes([row.token_ids[0] for row in rows], [row.start for row in rows], tables)

    def _pack_decodes(self, token_ids: list[TokenId], starts: list[int], tables: list[list[BlockId]]) -> StepInputs:
        if self._decodes is None or not self._decodes.has_room_for(tables):
            self._decodes = DecodeArrays(tables, self._block_size)
        return self._decodes.fill(token_ids, starts, tables)


def pack_rows(rows: Sequence[ScheduledRow], block_size: int) -> StepInputs:
    """As `StepPacker.pack`, into arrays of their own."""
    return StepPacker(block_size).pack(rows)


class DecodeArrays:
    """The arrays of steps with one token in each of B rows: written again in every step, block tables only where a row
    has another list of blocks than in the step before, or a longer one."""

    def __init__(self, tables: Sequence[list[BlockId]], block_size: int) -> None:
        num_rows, width = len(tables), max(map(len, tables))
        self._columns = np.zeros((5, num_rows), dtype=np.int64)
        self._tables = np.zeros((num_rows, width + width // 4 + 1), dtype=np.int64)  # rows grow; arbitrary
        self._lists: list[list[BlockId]] = [[]] * num_rows  # what the tables hold; a list only grows
        self._counts = [0] * num_rows  # how much of it
        self._inputs = StepInputs(
            token_ids=self._columns[0],
            positions=self._columns[1],
            block_of_token=self._columns[2],
            offset_of_token=self._columns[3],
            row_first_token=np.arange(num_rows + 1),
            context_lengths=self._columns[4],
            block_tables=self._tables,
            block_size=block_size,
        )

    def has_room_for(self, tables: Sequence[list[BlockId]]) -> bool:
        num_rows, width = self._tables.shape
        return len(tables) == num_rows and max(map(len, tables)) <= width

    def fill(self, token_ids: list[TokenId], starts: list[int], tables: list[list[BlockId]]) -> StepInputs:
        size, lists, counts, blocks = self._inputs.block_size, self._lists, self._counts, []
        for index, table in enumerate(tables):
            place, count = starts[index] // size, len(table)
            assert count > place, f"row {index}: {count} blocks for {starts[index] + 1} tokens"
            if lists[index] is not table or counts[index] != count:
                self._take(index, table)
            blocks.append(table[place])
        offsets, contexts = [start % size for start in starts], [start + 1 for start in starts]
        self._columns[:] = (token_ids, starts, blocks, offsets, contexts)
        return self._inputs

    def _take(self, index: int, table: list[BlockId]) -> None:
        first, count = self._counts[index] if self._lists[index] is table else 0, len(table)
        self._lists[index], self._counts[index] = table, count
        self._tables[index, first:count] = table[first:]
        if first == 0:
            self._tables[index, count:] = 0


def _pack_chunks(rows: Sequence[ScheduledRow], block_size: int) -> StepInputs:
    lengths = np.array([len(row.token_ids) for row in rows], dtype=np.int64)
    starts = np.array([row.start for row in rows], dtype=np.int64)
    context_lengths = starts + lengths
    num_blocks = -(-context_lengths // block_size)
    block_tables = np.zeros((len(rows), int(num_blocks.max())), dtype=np.int64)
    for index, row in enumerate(rows):
        count = int(num_blocks[index])
        assert len(row.block_ids) >= count, f"{row.request_id}: {len(row.block_ids)} blocks for {count} needed"
        block_tables[index, :count] = row.block_ids[:count]
    row_first_token = np.concatenate(([0], np.cumsum(lengths)))
    row_of_token = np.repeat(np.arange(len(rows)), lengths)
    positions = np.arange(row_first_token[-1]) - (row_first_token[:-1] - starts)[row_of_token]
    return StepInputs(
        token_ids=np.concatenate([np.asarray(row.token_ids, dtype=np.int64) for row in rows]),
        positions=positions,
        block_of_token=block_tables[row_of_token, positions // block_size],
        offset_of_token=positions % block_size,
        row_first_token=row_first_token,
        context_lengths=context_lengths,
        block_tables=block_tables,
        block_size=block_size,
    )
